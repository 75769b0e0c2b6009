// The heat map as a table, for screen readers and exact numbers: each rank's medians over the window.

import { element } from "./dom.js";
import { percent, seconds, spansText, times } from "./format.js";
import { PHASES, cellOf, lowMedian, phaseText } from "./measures.js";
import { holds } from "./heatmap.js";

const MAX_LINES = 100;

// Returns the text for below the table.
export function fillRanksTable(body, heat, culprits) {
  const lines = heat.rows.map((row, place) => ({ row, ...mediansOf(heat, place) }));
  lines.sort((a, b) => (b.ratio ?? -1) - (a.ratio ?? -1));
  body.replaceChildren(...lines.slice(0, MAX_LINES).map((line) => lineOf(line, culprits)));
  const all = "All at /api/v1/ranks?rows=4096.";
  if (heat.shown) return `Each row folds several ranks and shows the one that stands out. ${all}`;
  return lines.length > MAX_LINES ? `The ${MAX_LINES} with the most own time. ${all}` : "Medians over the steps shown.";
}

function mediansOf(heat, place) {
  const cells = heat.steps.map((_, column) => cellOf(heat, place, column));
  const over = (value) => lowMedian(cells.map((cell, column) => cell && value(cell, (name) => heat.median_seconds[name][column])));
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
  const isCulprit = culprits.some((culprit) => holds(row, culprit.ranks));
  return element(
    "tr",
    { className: isCulprit ? "culprit" : "" },
    cell(spansText(row)),
    cell(row.node ?? "–"),
    cell(row.state),
    cell(seconds(own), "number"),
    cell(ratio === null ? "–" : times(ratio), "number"),
    cell(waited === null ? "–" : percent(waited), "number"),
    cell(most[1] > 0 ? `${phaseText(most[0])}, +${seconds(most[1])}` : "–"),
  );
}
