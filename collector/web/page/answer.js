// The answer at the top of the page: the sentence, the figures behind it and the evidence.

import { byId, element, setLines, setText } from "./dom.js";
import { age, clock, number, percent, times } from "./format.js";

const BADGES = { ok: "All well", unknown: "Cannot tell", skipped: "Cannot tell" };
const KINDS = { slow_compute: "Slow rank", slow_host: "Slow host", slow_input: "Slow input", slow_link: "Slow link", uneven_work: "Uneven work", busy_threads: "Busy threads", hung: "Hung", dead: "Died first", corrupt: "Wrong parameters" };

// `incidents`: the job's laggard.incidents/1; null where nobody keeps any.
export function showAnswer(summary, incidents = null) {
  const { location } = summary;
  byId("answer").dataset.verdict = location.verdict;
  setText(byId("badge"), badgeOf(location));
  setText(byId("sentence"), summary.sentence);
  document.title = `${summary.sentence} · laggard`;
  setLines(byId("todo"), summary.todo);
  byId("todo-box").hidden = !summary.todo.length;
  setLines(byId("evidence"), summary.evidence);
  setLines(byId("notes"), summary.notes);
  showFigures([...sinceWhen(location, incidents), ...figuresOf(location)]);
}

function badgeOf({ verdict, culprits }) {
  if (verdict !== "fail") return BADGES[verdict] ?? verdict;
  return culprits.length ? (KINDS[culprits[0].kind] ?? "Culprit") : "Something is wrong";
}

// When the culprits that are named now were first named, and what they have taken since.
function sinceWhen({ culprits: [first] }, incidents) {
  const open = incidents?.incidents.filter((incident) => incident.closed_at === null) ?? [];
  if (!first || !open.length) return [];
  const { opened_at: since, opened_as: { since_step: step } } = open.reduce((a, b) => (b.opened_at < a.opened_at ? b : a));
  const lost = open.reduce((sum, incident) => sum + incident.lost_gpu_hours, 0);
  const from = step === null ? "" : `, since step ${number(step)}`; // as it was then: the steps that are held move on
  const cost = lost ? [["GPU-hours lost so far", lost < 0.1 ? "under 0.1" : number(lost)]] : [];
  return [[`named first, ${age(Math.max(0, incidents.now - since))} ago${from}`, clock(since, incidents.now)], ...cost];
}

function figuresOf({ culprits, slowdown_ratio: slowdown, window: steps, ranks_seen: ranks, world_size: world }) {
  const figures = [];
  const [first] = culprits;
  const stands = first?.kind === "hung" || first?.kind === "dead"; // a job that stands has no step time to compare
  if (stands) figures.push(["the job", "stands still"]);
  if (slowdown && first?.recoverable_ratio && !stands) figures.push(["the step time without it", times(slowdown)]);
  if (first?.recoverable_ratio && !stands) figures.push(["of the step time can be saved", percent(first.recoverable_ratio)]);
  if (first) figures.push(["confidence", percent(first.confidence)]);
  if (ranks) figures.push(["ranks seen", world ? `${number(ranks)} of ${number(world)}` : number(ranks)]);
  if (steps.last_step !== null) figures.push(["steps looked at", `${steps.first_step}–${steps.last_step}`]);
  return figures;
}

function showFigures(figures) {
  const list = byId("figures");
  list.hidden = !figures.length;
  list.replaceChildren(...figures.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))));
}
