// The fleet's view: each job's culprit, what its nodes and jobs are like in one sentence, a tile for each node, and the
// jobs.

import { writeAddress } from "./address.js";
import { byId, element, onChange, redraw, setText } from "./dom.js";
import { count, number } from "./format.js";
import { jobRow, titleOf } from "./jobs.js";

const WORDS = { culprit: "holding up a job", fail: "failing", silent: "silent", unknown: "unknown", wait: "not asked yet", ok: "fit" };
const TONES = ["culprit", "fail", "silent", "unknown", "wait", "ok"];
const MOST_ANSWERS = 5; // so many still fit the first screen of a phone
const MOST_NAMED = 24;

let allJobs = false; // whether the reader has opened those that are well

export const nameOf = ({ node, url }) => node ?? url.replace(/^https?:\/\//, "");

export const nodeAddress = (name) => writeAddress({ view: "node", node: name, measure: "own", order: "rank", zoom: null, rank: null });

export const jobAddress = (job) => writeAddress({ view: "job", job, measure: "own", order: "rank", zoom: null, rank: null });

// What a node is for the fleet by its own checks: one of TONES.
export function toneOf({ state, verdict }) {
  if (state === "waiting") return "wait";
  if (state !== "up") return "silent";
  return { ok: "ok", skipped: "ok", fail: "fail" }[verdict] ?? "unknown";
}

// `tiles`: a laggard.tiles/1; `jobs` and `counts`: of a laggard.summary/1; `find`: what the jobs were looked for by.
export function showFleet({ tiles, jobs, counts: ofJobs, find }) {
  const { total, counts } = tiles;
  setText(byId("fleet-sentence"), sentence(total, counts, ofJobs));
  byId("fleet-head").dataset.verdict = counts.culprit || counts.fail || ofJobs.failing ? "fail" : counts.silent || counts.unknown || !total ? "unknown" : "ok";
  showTiles(tiles);
  const ordered = [...jobs].sort((a, b) => weight(a) - weight(b) || b.lost_ranks - a.lost_ranks);
  const failing = ordered.filter((line) => weight(line) === 0);
  redraw(byId("answers"), failing.slice(0, MOST_ANSWERS).map(answerOf));
  byId("jobs-card").hidden = !jobs.length && !find;
  showJobs(ordered, Boolean(find));
  setText(byId("jobs-explain"), jobsText(jobs.length, ofJobs, find));
}

// Those that need a look; the others are folded to a count.
function showJobs(ordered, all) {
  const shown = all || allJobs ? ordered : ordered.filter(({ running, verdict }) => verdict === "fail" || (running && verdict !== "ok"));
  redraw(byId("jobs").tBodies[0], shown.map((line) => jobRow(line, jobAddress(line.key))));
  byId("jobs").hidden = !shown.length;
  const fold = byId("jobs-fold");
  fold.hidden = shown.length === ordered.length;
  setText(fold, `Show ${count(ordered.length - shown.length, "job")} without a culprit`);
  fold.onclick = () => {
    allJobs = true;
    showJobs(ordered, all);
  };
}

// A job with a culprit: its name, the answer, and what that costs.
function answerOf({ key, job_id, script, sentence: answer, lost_ranks: lost, ranks }) {
  const costs = lost >= 0.05 ? `It costs the time of ${lost >= ranks ? "all" : `${number(lost)} of`} ${count(ranks, "rank")}.` : "";
  return element("li", {}, element("a", { href: jobAddress(key), text: titleOf({ job_id, script }) }), `: ${answer}`, element("span", { className: "sub", text: costs }));
}

const weight = ({ running, verdict }) => (running ? (verdict === "fail" ? 0 : 1) : 2);

function jobsText(shown, { total, found }, find) {
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
  const more = counts.culprit ? "more " : "";
  const wrong = [
    [counts.culprit, counts.culprit === 1 ? "holds up a job" : "hold up a job"],
    [counts.fail, more + (counts.fail === 1 ? "fails the checks" : "fail the checks")],
    [counts.silent, counts.silent === 1 ? "does not answer" : "do not answer"],
    [counts.unknown, "cannot tell"],
  ].filter(([many]) => many);
  const parts = wrong.map(([many, what], place) => `${number(many)} ${place ? "" : `of ${count(total, "node")} `}${what}`);
  const { running, failing: slow } = jobs;
  const several = running > 1 ? `${slow || "none"} of ${number(running)} running jobs ${slow > 1 ? "have" : "has"} a culprit` : `the job that runs has ${slow ? "a" : "no"} culprit`;
  const work = running ? several : "no job runs";
  const nodes = parts.length ? parts.join(", ") : counts.ok === total ? `${total === 1 ? "The node is" : `All ${number(total)} nodes are`} fit` : "The nodes are asked";
  return `${nodes}; ${work}.`;
}

// The nodes that need attention by name, the culprits' first; the others are folded to a count.
const showTiles = onChange(({ total, shown, counts, spans }) => {
  const nodes = spans.flatMap(expanded);
  byId("tiles-card").hidden = !nodes.length;
  setText(byId("tiles-cut"), shown < total ? `${number(shown)} of ${number(total)} are shown, those that need attention among them; the search finds each.` : "");
  byId("tiles-legend").replaceChildren(...TONES.filter((tone) => counts[tone]).map((tone) => element("span", { className: "legend-key" }, mark(tone), `${number(counts[tone])} ${WORDS[tone]}`)));
  const ordered = TONES.flatMap((tone) => nodes.filter((node) => node[1] === tone));
  const [fit, others] = [ordered.filter(([, tone]) => tone === "ok"), ordered.filter(([, tone]) => tone !== "ok")];
  const named = others.slice(0, MOST_NAMED).map((node) => linkTo(node, "named", mark(node[1]), element("b", { text: node[0] }), ` ${node[2].join(", ")}`));
  redraw(byId("tiles-named"), named);
  for (const [id, part] of [["tiles", others.slice(MOST_NAMED)], ["tiles-ok", fit]]) {
    byId(id).dataset.size = part.length > 1024 ? "small" : part.length > 128 ? "middle" : "large";
    redraw(byId(id), part.map((node) => linkTo(node, "tile")));
  }
  byId("tiles-fold").hidden = !fit.length;
  setText(byId("tiles-fit"), `${count(counts.ok ?? 0, "node")} fit`);
});

const mark = (tone) => element("i", { className: "tile", "data-tone": tone });

// By keyboard those that need a look are reached here, and all of them in the table below.
function linkTo([name, tone, codes], className, ...content) {
  const said = `${name}: ${[WORDS[tone], ...codes].join(", ")}`;
  return element("a", { className, href: nodeAddress(name), title: said, "data-tone": tone, ...(tone === "ok" ? { tabindex: "-1" } : {}) }, ...content);
}
