// The card of single ranks: what the chosen rank, or without one the culprits, did in the last steps, beside a peer.

import { byId, setText } from "./dom.js";
import { showTimeline } from "./timeline.js";

// `onRank`: called with the number that the reader asks for, or null for the culprits. Returns the function that shows a
// timeline: (timeline, chosen rank or null).
export function rankView({ onRank }) {
  const box = byId("timeline");
  const input = byId("rank");
  let shown = null;
  let last = null;

  byId("rank-form").addEventListener("submit", (event) => {
    event.preventDefault();
    onRank(/^\d{1,9}$/.test(input.value) ? Number(input.value) : null);
  });
  byId("rank-culprits").addEventListener("click", () => onRank(null));

  const draw = () => showTimeline(box, last);
  new ResizeObserver(() => last && Math.abs(box.clientWidth - shown.width) > 8 && show(last, shown.rank)).observe(box);

  function show(timeline, rank) {
    const text = JSON.stringify(timeline);
    const again = shown !== null && shown.rank === rank;
    // A table that is read with the keyboard, and one in which nothing changed, stays as it is.
    if (again && shown.width === box.clientWidth && (shown.text === text || box.contains(document.activeElement))) return;
    last = timeline;
    shown = { rank, text, width: box.clientWidth };
    byId("rank-card").hidden = timeline === null || (rank === null && !timeline.rows.length);
    if (document.activeElement !== input) input.value = rank ?? "";
    byId("rank-culprits").hidden = rank === null;
    setText(byId("rank-title"), titleOf(timeline, rank));
    if (!byId("rank-card").hidden) draw();
  }
  return show;
}

function titleOf(timeline, rank) {
  if (rank !== null) return `Rank ${rank} beside a peer`;
  const asked = timeline?.rows.filter((row) => row.role === "asked").length ?? 0;
  return asked > 1 ? "The ranks to look at beside their peers" : "The rank to look at beside a peer";
}
