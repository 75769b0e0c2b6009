// Who waits for what: the groups and links in which the ranks that are shown waited the longest.

import { byId, element, onChange, setText } from "./dom.js";
import { count, seconds } from "./format.js";
import { collectiveName } from "./timeline.js";

// `timeline`: a laggard.timeline/1, or null.
export const showWaits = onChange((timeline) => {
  const groups = timeline?.groups ?? [];
  byId("waits-card").hidden = !groups.length;
  if (!groups.length) return;
  const [worst] = groups;
  setText(byId("waits-sentence"), `Rank ${worst.longest_rank} waits the longest in ${collectiveName(worst)}: ${seconds(worst.longest)}${othersOf(worst)}.`);
  const rows = timeline.rows.map(({ rank }) => rank).join(" and ");
  setText(byId("waits-explain"), `Of ${timeline.rows.length > 1 ? "ranks" : "rank"} ${rows}, all ${count(timeline.steps.length, "step")} together. A rank that waits much less than the others comes last to the collective: they wait for it.`);
  byId("waits").tBodies[0].replaceChildren(...groups.map(rowOf));
});

function othersOf({ least_rank: rank, least, longest }) {
  if (rank === null) return "";
  if (least > 0.8 * longest) return `; rank ${rank} waits as long: both wait for another rank, or for the network`;
  return `; rank ${rank} waits ${seconds(least, longest)}, so it comes last`;
}

function rowOf(wait) {
  const cell = (label, text) => element("td", { "data-label": label, className: "short", text });
  const least = wait.least_rank === null ? "–" : `rank ${wait.least_rank}, ${seconds(wait.least, wait.longest)}`;
  return element("tr", {}, element("td", { className: "name", text: collectiveName(wait) }), cell("Times", `${wait.count}`), cell("Longest", `rank ${wait.longest_rank}, ${seconds(wait.longest)}`), cell("Least", least));
}
