// Where in the code a culprit stands, beside a rank that waits for it or does the same work. Lines that only the culprit
// has are marked, by a sign as well as by colour.

import { byId, element, onChange, setText } from "./dom.js";

// `culprits`: of a laggard.location/1.
export const showStacks = onChange((culprits) => {
  const found = culprits.find(({ stack }) => stack)?.stack;
  byId("stacks-card").hidden = !found;
  if (!found) return;
  setText(byId("stacks-sentence"), `Rank ${found.rank}: ${found.text}.`);
  const marked = found.differing ? " Lines marked with › are not on the other's stack." : "";
  setText(byId("stacks-explain"), `The innermost call comes first.${marked}`);
  const peerDiffering = (found.peer_frames ?? []).length - (found.frames.length - (found.differing ?? 0));
  const lists = [listOf(`Rank ${found.rank}`, found.frames, found.differing ?? 0)];
  if (found.peer_frames?.length) lists.push(listOf(`Rank ${found.peer}`, found.peer_frames, Math.max(0, peerDiffering)));
  byId("stacks").replaceChildren(...lists);
});

function listOf(title, frames, differing) {
  const lines = frames.map((text, place) => element("li", place < differing ? { className: "differs", text } : { text }));
  return element("section", {}, element("h3", { text: title }), element("ol", {}, ...lines));
}
