// The measures that the heat map can show: a cell's value, its place on the scale, and its text.

import { percent, seconds, shortSeconds, times } from "./format.js";

export const PHASES = [
  "input", "forward", "backward", "optimizer", "between_steps", "evaluation", "checkpoint", "logging", "other",
];

// The phase's name for people.
export const phaseText = (name) => name.replace("_", " ");

export const MEASURES = [
  { name: "own", label: "Own time" },
  { name: "waited", label: "Waiting" },
  ...PHASES.map((name) => ({ name, label: name[0].toUpperCase() + phaseText(name).slice(1) })),
];

// The seconds of one cell: each phase, waited, own (all phases) and step; null where the rank has no row for the step.
export function cellOf(heat, row, column) {
  const cell = { waited: heat.seconds.waited[row][column], own: 0 };
  for (const phase of PHASES) {
    cell[phase] = heat.seconds[phase][row][column];
    cell.own += cell[phase];
  }
  if (cell.waited === null || cell.input === null) return null;
  cell.step = cell.own + cell.waited;
  return cell;
}

// The scale of a measure. kind: of the palette. values: of each cell, null where there is none. share: the place of a
// value on the scale, 0 to 1. describe: a cell as text.
export function scaleOf(measure, heat) {
  const values = cellValues(measure, heat);
  if (measure === "own") return ownScale(values);
  if (measure === "waited") return waitedScale(values);
  return phaseScale(measure, values, heat);
}

function ownScale(values) {
  const top = firstAbove(largestMedian(values), [1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 20, 50, 100]);
  return {
    kind: "diverging",
    values,
    share: (ratio) => 0.5 + (0.5 * Math.log(Math.max(ratio, 1e-6))) / Math.log(top),
    labels: [`≤ ${+(1 / top).toPrecision(2)}×`, "1×", `≥ ${top}×`],
    words: "of the median rank in the same step",
    explain: "Each rank's own time, all but waiting in collectives. The slow rank is the one that is busy while the others wait.",
    describe: (cell, median) => `${seconds(cell.own)} own time, ${times(cell.own / median.own)} the median`,
  };
}

function waitedScale(values) {
  const top = firstAbove(largestMedian(values), [0.1, 0.2, 0.3, 0.5, 0.7, 1]);
  return {
    kind: "sequential",
    values,
    share: (part) => part / top,
    labels: ["0 %", percent(top / 2), `${top < 1 ? "≥ " : ""}${percent(top)}`],
    words: "of the step",
    explain: "Time blocked in collectives. Victims wait long; the rank that they wait for waits least.",
    describe: (cell) => `${seconds(cell.waited)} waiting, ${percent(cell.step ? cell.waited / cell.step : 0)} of the step`,
  };
}

function phaseScale(phase, values, heat) {
  // At least a twentieth of a step, so that noise stays pale.
  const step = lowMedian(heat.median_seconds.step) || 0;
  const top = niceAbove(Math.max(step / 20, largestMedian(values.map((row) => row.map(magnitude))), 1e-6));
  return {
    kind: "diverging",
    values,
    share: (extra) => 0.5 + (0.5 * extra) / top,
    labels: [`≤ −${shortSeconds(top)}`, "0", `≥ +${shortSeconds(top)}`],
    words: "against the median rank in the same step",
    explain: `Own time in ${phase === "other" ? "what no phase claims" : phaseText(phase)}, collectives taken out.`,
    describe: (cell, median) => `${seconds(cell[phase], median[phase])} in ${phaseText(phase)}, the median is ${seconds(median[phase], cell[phase])}`,
  };
}

function cellValues(measure, heat) {
  return heat.rows.map((_, row) =>
    heat.steps.map((_, column) => {
      const cell = cellOf(heat, row, column);
      return cell && cellValue(measure, cell, (name) => heat.median_seconds[name][column]);
    }),
  );
}

function cellValue(measure, cell, median) {
  if (measure === "own") return median("own") > 0 ? cell.own / median("own") : 1;
  if (measure === "waited") return cell.step > 0 ? cell.waited / cell.step : 0;
  return cell[measure] - median(measure);
}

// The median without nulls, the lower of the two in the middle for an even number; null where there are no values.
export function lowMedian(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[(known.length - 1) >> 1] : null;
}

// The largest of the rows' medians: a spike in one step does not make everything else pale.
const largestMedian = (rows) => rows.reduce((most, row) => Math.max(most, lowMedian(row) ?? 0), 0);

const magnitude = (value) => (value === null ? null : Math.abs(value));
const firstAbove = (value, steps) => steps.find((step) => step >= value) ?? steps[steps.length - 1];

function niceAbove(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return firstAbove(value / unit, [1, 2, 5, 10]) * unit;
}
