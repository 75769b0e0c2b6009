// The fleet's view: what its nodes and jobs are like in one sentence, a tile for each node, and the jobs.

import { writeAddress } from "./address.js";
import { byId, element, onChange, setText } from "./dom.js";
import { count } from "./format.js";
import { jobRow } from "./jobs.js";

const WORDS = { fail: "fails its checks", unknown: "cannot tell", silent: "does not answer", ok: "fit", wait: "not asked yet" };
const LEGEND = { fail: "▲ fail", silent: "silent (dashed)", unknown: "unknown (framed)", wait: "not asked yet", ok: "fit" };
const TONES = ["fail", "silent", "unknown", "wait", "ok"];

export const nameOf = ({ node, url }) => node ?? url.replace(/^https?:\/\//, "");

export const nodeAddress = (name) => writeAddress({ view: "node", node: name, measure: "own", order: "rank", zoom: null, rank: null });

// What a node is for the fleet: one of TONES.
export function toneOf({ state, verdict }) {
  if (state === "waiting") return "wait";
  if (state !== "up") return "silent";
  return { ok: "ok", skipped: "ok", fail: "fail" }[verdict] ?? "unknown";
}

// `tiles`: a laggard.tiles/1; `jobs` and `counts`: of a laggard.summary/1; `find`: what the jobs were looked for by.
export const showFleet = onChange(({ tiles, jobs, counts: ofJobs, find }) => {
  const { total, shown, counts, spans } = tiles;
  setText(byId("fleet-sentence"), sentence(total, counts, ofJobs));
  byId("fleet-head").dataset.verdict = counts.fail || ofJobs.failing ? "fail" : counts.silent || counts.unknown || !total ? "unknown" : "ok";
  showTiles(spans.flatMap(expanded));
  const cut = shown < total ? `. ${shown} of ${total} are shown, those that need attention among them; the search below finds each` : "";
  setText(byId("tiles-legend"), TONES.filter((tone) => counts[tone]).map((tone) => `${counts[tone]} ${LEGEND[tone]}`).join(", ") + cut);
  const ordered = [...jobs].sort((a, b) => weight(a) - weight(b));
  byId("jobs").tBodies[0].replaceChildren(...ordered.map((line) => jobRow(line, writeAddress({ view: "job", job: line.key, measure: "own", order: "rank", zoom: null, rank: null }))));
  byId("jobs").hidden = !jobs.length;
  setText(byId("jobs-explain"), jobsText(jobs.length, ofJobs, find));
});

const weight = ({ running, verdict }) => (running ? (verdict === "fail" ? 0 : 1) : 2);

function jobsText(shown, { total, found }, find) {
  if (!total) return "No job runs under laggard run.";
  const cut = shown < found ? `The first ${shown} of ${found}, those with a culprit first.` : "";
  return find ? `${count(found, "job")} of ${total} ${found === 1 ? "has" : "have"} “${find}”. ${cut}` : cut && `${cut} The search finds each.`;
}

// The nodes of a span of laggard.tiles/1, as [name, tone, codes].
function expanded([prefix, first, last, width, suffix, tone, codes]) {
  if (first < 0) return [[prefix, tone, codes]];
  return Array.from({ length: last - first + 1 }, (_, place) => [`${prefix}${String(first + place).padStart(width, "0")}${suffix}`, tone, codes]);
}

function sentence(total, counts, jobs) {
  if (!total) return "No node is known.";
  const wrong = [
    [counts.fail, counts.fail === 1 ? "fails the checks" : "fail the checks"],
    [counts.silent, counts.silent === 1 ? "does not answer" : "do not answer"],
    [counts.unknown, "cannot tell"],
  ].filter(([number]) => number);
  const parts = wrong.map(([number, what], place) => `${number} ${place ? "" : `of ${count(total, "node")} `}${what}`);
  const { running, failing: slow } = jobs;
  const work = running ? `${slow || "none"} of ${count(running, "running job")} ${slow === 1 || !slow ? "has" : "have"} a culprit` : "no job runs";
  const nodes = parts.length ? parts.join(", ") : counts.ok === total ? `${total === 1 ? "The node is" : `All ${total} nodes are`} fit` : "The nodes are asked";
  return `${nodes}; ${work}.`;
}

function showTiles(nodes) {
  const tiles = nodes.map(([name, tone, codes]) => {
    const said = `${name}: ${[WORDS[tone], ...codes].join(", ")}`;
    // By keyboard those that need a look are reached here, and all of them in the table below.
    return element("a", { className: "tile", href: nodeAddress(name), title: said, "aria-label": said, "data-tone": tone, ...(tone === "ok" ? { tabindex: "-1" } : {}) });
  });
  byId("tiles").dataset.size = nodes.length > 1024 ? "small" : nodes.length > 128 ? "middle" : "large";
  byId("tiles").replaceChildren(...tiles);
}
