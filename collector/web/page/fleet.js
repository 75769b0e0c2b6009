// The fleet's view: what its nodes and jobs are like in one sentence, a tile for each node, and the jobs.

import { writeAddress } from "./address.js";
import { byId, element, onChange, setText } from "./dom.js";
import { count } from "./format.js";
import { jobRow } from "./jobs.js";

const MOST_TILES = 8192;
const MOST_JOBS = 100;
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

export const showFleet = onChange(({ nodes, jobs }) => {
  const tones = nodes.map(toneOf);
  const counts = Object.fromEntries(TONES.map((tone) => [tone, tones.filter((each) => each === tone).length]));
  setText(byId("fleet-sentence"), sentence(nodes.length, counts, jobs));
  byId("fleet-head").dataset.verdict = counts.fail || jobs.some(fails) ? "fail" : counts.silent || counts.unknown || !nodes.length ? "unknown" : "ok";
  showTiles(nodes, tones);
  setText(byId("tiles-legend"), TONES.filter((tone) => counts[tone]).map((tone) => `${counts[tone]} ${LEGEND[tone]}`).join(", "));
  const shown = [...jobs].sort((a, b) => weight(a) - weight(b)).slice(0, MOST_JOBS);
  byId("jobs").tBodies[0].replaceChildren(...shown.map((line) => jobRow(line, writeAddress({ view: "job", job: line.key, measure: "own", order: "rank", zoom: null, rank: null }))));
  byId("jobs").hidden = !jobs.length;
  setText(byId("jobs-explain"), jobs.length ? (jobs.length > shown.length ? `The first ${shown.length} of ${jobs.length}, those with a culprit first.` : "") : "No job runs under laggard run.");
});

const fails = (job) => job.running && job.verdict === "fail";

const weight = (job) => (fails(job) ? 0 : job.running ? 1 : 2);

function sentence(total, counts, jobs) {
  if (!total) return "No node is known.";
  const wrong = [
    [counts.fail, counts.fail === 1 ? "fails the checks" : "fail the checks"],
    [counts.silent, counts.silent === 1 ? "does not answer" : "do not answer"],
    [counts.unknown, "cannot tell"],
  ].filter(([number]) => number);
  const parts = wrong.map(([number, what], place) => `${number} ${place ? "" : `of ${count(total, "node")} `}${what}`);
  const running = jobs.filter((job) => job.running).length;
  const slow = jobs.filter(fails).length;
  const work = running ? `${slow || "none"} of ${count(running, "running job")} ${slow === 1 || !slow ? "has" : "have"} a culprit` : "no job runs";
  const nodes = parts.length ? parts.join(", ") : counts.ok === total ? `${total === 1 ? "The node is" : `All ${total} nodes are`} fit` : "The nodes are asked";
  return `${nodes}; ${work}.`;
}

function showTiles(nodes, tones) {
  const order = nodes.map((_, place) => place).sort((a, b) => nameOf(nodes[a]).localeCompare(nameOf(nodes[b]), "en", { numeric: true }));
  const tiles = order.slice(0, MOST_TILES).map((place) => {
    const [name, tone] = [nameOf(nodes[place]), tones[place]];
    const said = `${name}: ${[WORDS[tone], ...nodes[place].findings].join(", ")}`;
    // By keyboard those that need a look are reached here, and all of them in the table below.
    return element("a", { className: "tile", href: nodeAddress(name), title: said, "aria-label": said, "data-tone": tone, ...(tone === "ok" ? { tabindex: "-1" } : {}) });
  });
  byId("tiles").dataset.size = nodes.length > 1024 ? "small" : nodes.length > 128 ? "middle" : "large";
  byId("tiles").replaceChildren(...tiles);
}
