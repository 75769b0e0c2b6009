// Draws what some ranks did in the last steps, each beside its peer: bars by step, then the same as a table.

import { element } from "./dom.js";
import { count, seconds } from "./format.js";
import { PHASES, phaseText } from "./measures.js";

const PARTS = [...PHASES, "waited"];
const NAMES = { waited: "waiting", other: "other work" };
const LETTERS = { input: "I", forward: "F", backward: "B", optimizer: "O", between_steps: "S", evaluation: "E", checkpoint: "C", logging: "L", other: "·" }; // beside colour, a second sign
const BAR = 26;
const LANE = 9; // of single collectives, below the bar
const ROW = 56;
const AXIS = 24;
const nameOf = (part) => NAMES[part] ?? phaseText(part);

// The parts in which any of the ranks spent time.
const partsIn = ({ rows }) => PARTS.filter((part) => rows.some((row) => row.seconds[part].some((value) => value > 0)));

// `timeline`: a laggard.timeline/1 document. Fills `box`, an element that it owns.
export function showTimeline(box, timeline) {
  if (!timeline?.rows.length) {
    box.replaceChildren(element("p", { className: "empty", text: "Nothing is recorded of single ranks." }));
    return;
  }
  const hasSteps = timeline.steps.length > 0;
  box.replaceChildren(...(hasSteps ? [legend(timeline), drawing(box, timeline), explanation(timeline)] : []), table(timeline, hasSteps));
}

const hasLanes = ({ rows }) => rows.some(({ collectives }) => collectives.length);

function explanation(timeline) {
  const phases = "Each rank's steps on its own clock. Within a step the phases stand one after the other, waiting last; in truth they alternate.";
  const cut = timeline.rows.some((row) => row.collectives_seen > row.collectives.length) ? " Of very many, those with the longest waits." : "";
  const lanes = hasLanes(timeline) ? ` The lane below has the single collectives at their own times: the rank is blocked in the bold part.${cut}` : "";
  return element("p", { className: "explain", text: phases + lanes });
}

function legend(timeline) {
  const keys = partsIn(timeline).map((part) => element("span", { className: "legend-key" }, element("i", { className: `part-${part}`, text: LETTERS[part] ?? "" }), nameOf(part)));
  const lane = hasLanes(timeline) ? [element("span", { className: "legend-key" }, element("i", { className: "lane-key" }), "a collective, with a bold part where the rank is blocked")] : [];
  return element("div", { className: "legend" }, ...keys, ...lane);
}

function drawing(box, timeline) {
  const width = Math.max(280, box.clientWidth || 900);
  const total = Math.max(...timeline.rows.map((row) => sum(timeline.steps.map((_, at) => sum(partsOf(row, at)))))) || 1;
  const rowHeight = ROW + (hasLanes(timeline) ? LANE + 4 : 0);
  const height = timeline.rows.length * rowHeight + AXIS;
  const picture = svg("svg", { width: "100%", height, role: "img", class: "timeline" });
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("aria-label", `Steps ${timeline.steps[0]} to ${timeline.steps.at(-1)} of ${count(timeline.rows.length, "rank")}; the table below has the numbers.`);
  picture.append(hatching());
  timeline.rows.forEach((row, place) => picture.append(...barsOf(row, timeline.steps, place * rowHeight, width / total)));
  picture.append(...axisOf(timeline, width / total, height - AXIS + 16));
  return picture;
}

// Stripes tell waiting from work without colour.
function hatching() {
  const stripes = svg("pattern", { id: "waiting", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  stripes.append(svg("rect", { width: 6, height: 6, class: "waiting-ground" }), svg("rect", { width: 2, height: 6, class: "waiting-stripe" }));
  const definitions = svg("defs", {});
  definitions.append(stripes);
  return definitions;
}

function barsOf(row, steps, top, scale) {
  const label = svg("text", { x: 0, y: top + 18, class: row.role === "asked" ? "row-label asked" : "row-label" });
  label.textContent = labelOf(row);
  const drawn = [label];
  let at = 0;
  steps.forEach((step, column) => {
    drawn.push(...laneOf(row, column, step, at, top + 24 + BAR + 4, scale));
    partsOf(row, column).forEach((value, place) => {
      if (value <= 0) return;
      const part = PARTS[place];
      const width = Math.max(0.5, value * scale);
      const bar = svg("rect", { x: at, y: top + 24, width, height: BAR, class: `part-${part}` });
      if (part === "waited") bar.setAttribute("fill", "url(#waiting)");
      const title = svg("title", {});
      title.textContent = `Step ${step}: ${seconds(value)} ${nameOf(part)}`;
      bar.append(title);
      drawn.push(bar);
      if (LETTERS[part] && width >= 12) drawn.push(letterOf(part, at + width / 2, top + 24 + BAR / 2 + 4));
      at += value * scale;
    });
    drawn.push(svg("rect", { x: at - 1, y: top + 22, width: 2, height: BAR + 4, class: "step-end" }));
  });
  return drawn;
}

function letterOf(part, x, y) {
  const letter = svg("text", { x, y, class: `letter letter-${part}`, "aria-hidden": "true" });
  letter.textContent = LETTERS[part];
  return letter;
}

// The collectives of one step of a row, cut to the step. `left`: where it begins.
function laneOf(row, column, step, left, top, scale) {
  const length = sum(partsOf(row, column));
  const within = (moment) => Math.min(length, Math.max(0, moment));
  return row.collectives.filter(([place]) => place === column).flatMap(([, op, group, peer, start, end, waited]) => {
    const x = left + within(start) * scale;
    const width = Math.max(1, (within(end) - within(start)) * scale);
    const blocked = Math.min(width, Math.max(waited > 0 ? 1 : 0, waited * scale));
    const span = svg("rect", { x, y: top, width, height: LANE, class: "span" });
    const title = svg("title", {});
    title.textContent = `Step ${step}: ${collectiveName({ op, group, peer })} for ${seconds(end - start)}, blocked for ${seconds(waited)}`;
    span.append(title);
    return [span, svg("rect", { x: x + width - blocked, y: top, width: blocked, height: LANE, class: "span-blocked" })];
  });
}

function axisOf(timeline, scale, y) {
  let at = 0;
  let free = -1;
  return timeline.steps.flatMap((step, column) => {
    const width = sum(partsOf(timeline.rows[0], column)) * scale;
    const middle = at + width / 2;
    at += width;
    if (middle - 30 < free) return [];
    free = middle + 30;
    const text = svg("text", { x: middle, y, class: "axis" });
    text.textContent = `step ${step}`;
    return [text];
  });
}

function table(timeline, hasSteps) {
  const waits = `waits in, of ${timeline.steps.length > 1 ? `all ${timeline.steps.length} steps` : "the step"} together`;
  const columns = hasSteps ? [...partsIn(timeline).map(nameOf), waits] : ["state", "last step", "phase", "in a collective"];
  const head = element("tr", {}, element("th", { text: "Rank", scope: "col" }), ...columns.map((text) => element("th", { text, scope: "col", className: hasSteps && text !== waits ? "number" : "" })));
  const body = timeline.rows.map((row) => lineOf(row, timeline, hasSteps));
  const caption = element("caption", { text: hasSteps ? `Mean of a step, over ${count(timeline.steps.length, "step")}` : "Where each rank is" });
  const made = element("table", { className: "timeline-table" }, caption, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { className: "scroll", tabindex: "0", role: "region", "aria-label": "The ranks' times as a table" }, made);
}

function lineOf(row, timeline, hasSteps) {
  const name = element("th", { text: labelOf(row), scope: "row" });
  const cell = (text, className = "") => element("td", { text, className });
  if (!hasSteps) return element("tr", {}, name, cell(stateOf(row)), cell(`${row.last_step ?? "–"}`), cell(row.phase ?? "–"), cell(flightOf(row)));
  const means = partsIn(timeline).map((part) => cell(seconds(meanOf(row.seconds[part])), "number"));
  const waits = row.waits.map((wait) => `${wait.op} of ${wait.group}, ${wait.count} times, ${seconds(wait.seconds)}`).join("; ");
  return element("tr", {}, name, ...means, cell(waits || flightOf(row)));
}

export const collectiveName = ({ op, group, peer }) => `${op} of ${group}${peer === null ? "" : ` with rank ${peer}`}`;

const stateOf = (row) => (row.stopped ? "stopped by a signal or a debugger" : row.state);

const flightOf = ({ in_flight: flight }) => (flight ? `${flight.op} of ${flight.group}, number ${flight.seq}, for ${seconds(flight.seconds)}` : "–");

const labelOf = (row) => `Rank ${row.rank}${row.node ? ` on ${row.node}` : ""}${row.role === "peer" ? ", a peer" : ""}`;

const partsOf = (row, column) => PARTS.map((part) => row.seconds[part][column] ?? 0);

const sum = (values) => values.reduce((total, value) => total + value, 0);

function meanOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? sum(known) / known.length : null;
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
