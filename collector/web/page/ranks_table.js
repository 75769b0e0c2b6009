// The heat map for those who read rather than look: each rank's medians over the window.

import { element } from "./dom.js";
import { percent, seconds, times } from "./format.js";
import { PHASES, cellOf, middle } from "./measures.js";
import { holds } from "./heatmap.js";

const MOST = 100;

// Returns what is to be said below the table.
export function fillRanksTable(body, heat, culprits) {
  const lines = heat.rows.map((row, place) => ({ row, ...mediansOf(heat, place) }));
  lines.sort((a, b) => (b.ratio ?? -1) - (a.ratio ?? -1));
  body.replaceChildren(...lines.slice(0, MOST).map((line) => lineOf(line, culprits)));
  const all = "All at /api/v1/ranks?rows=4096.";
  if (heat.shown) return `Ranks are folded together here, and the one that stands out is told. ${all}`;
  return lines.length > MOST ? `The ${MOST} with the most own time. ${all}` : "Medians over the steps shown.";
}

function mediansOf(heat, place) {
  const cells = heat.steps.map((_, column) => cellOf(heat, place, column));
  const over = (value) => middle(cells.map((cell, column) => cell && value(cell, (name) => heat.median_seconds[name][column])));
  const extra = PHASES.map((phase) => [phase, over((cell, median) => cell[phase] - median(phase)) ?? 0]);
  return {
    own: over((cell) => cell.own),
    ratio: over((cell, median) => (median("own") > 0 ? cell.own / median("own") : 1)),
    waited: over((cell) => (cell.step > 0 ? cell.waited / cell.step : 0)),
    most: extra.reduce((a, b) => (b[1] > a[1] ? b : a)),
  };
}

function lineOf({ row, own, ratio, waited, most }, culprits) {
  const cell = (text, className = "") => element("td", { text, className });
  const marked = culprits.some((culprit) => holds(row, culprit.ranks));
  return element(
    "tr",
    { className: marked ? "culprit" : "" },
    cell(row.count > 1 ? `${row.first}–${row.last}` : `${row.first}`),
    cell(row.node ?? "–"),
    cell(row.state),
    cell(seconds(own), "number"),
    cell(ratio === null ? "–" : times(ratio), "number"),
    cell(waited === null ? "–" : percent(waited), "number"),
    cell(most[1] > 0 ? `${most[0]}, +${seconds(most[1])}` : "–"),
  );
}
