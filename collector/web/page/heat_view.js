// The card of the heat map: the choice of a measure, the map, its legend, its tip, and the same as a table.

import { byId, element, setText } from "./dom.js";
import { count } from "./format.js";
import { drawHeat, drawLegend } from "./heatmap.js";
import { MEASURES, scaleOf } from "./measures.js";
import { fillRanksTable } from "./ranks_table.js";
import { followPointer } from "./tip.js";

// `onMeasure`: called with the name of a measure that the reader chooses; `onRow`: with the row of a cell that is
// clicked, or entered with the keyboard. Returns the function that shows a heat map: (heat, summary, text where it is
// empty).
export function heatView({ measure, onMeasure, onRow }) {
  let drawn = null;
  let last = null;
  const updateTip = followPointer(byId("heat-canvas"), byId("heat-cursor"), byId("heat-tip"), () => drawn, (cell) => onRow?.(drawn.heat.rows[cell.row], drawn.heat, cell));

  const show = (heat, summary, empty = "") => {
    last = [heat, summary, empty];
    const hasCells = heat !== null && heat.rows.length > 0 && heat.steps.length > 0;
    for (const id of ["heat", "legend", "heat-alternative", "measures"]) byId(id).hidden = !hasCells;
    setText(byId("heat-empty"), hasCells ? "" : empty);
    drawn = null;
    if (!hasCells) {
      setText(byId("heat-explain"), "");
      return;
    }
    const culprits = summary.location.culprits;
    const scale = scaleOf(heat.measure, heat);
    drawn = { heat, scale, shape: drawHeat(byId("heat-canvas"), heat, scale, culprits) };
    showLegend(scale, culprits.some((culprit) => culprit.ranks.length));
    setText(byId("heat-explain"), scale.explain + foldText(heat));
    byId("heat-canvas").setAttribute("aria-label", `Heat map of ${heat.ranks_seen} ranks by ${heat.steps.length} steps. ${summary.sentence} Arrow keys read single cells${onRow ? ", Enter opens the rank" : ""}.`);
    fillTable();
    updateTip();
  };
  const fillTable = () => {
    if (!drawn || !byId("heat-alternative").open) return; // a closed table costs as much time as the whole map
    setText(byId("heat-table-more"), fillRanksTable(byId("heat-table").tBodies[0], drawn.heat, last[1].location.culprits));
  };
  byId("heat-alternative").addEventListener("toggle", fillTable);
  const again = () => last && byId("heat-canvas").offsetParent !== null && show(...last);
  byId("heat").classList.toggle("opens", Boolean(onRow));
  makeMeasures(measure, onMeasure);
  new ResizeObserver(again).observe(byId("heat-card"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return show;
}

function foldText(heat) {
  const folds = heat.shown ? ` ${count(heat.ranks_seen, "rank")}; each row folds ${heat.rows[0].count} of them and shows the one that stands out.` : "";
  const columns = heat.step_fold > 1 ? ` Each column is the mean of ${heat.step_fold} steps.` : "";
  return folds + columns;
}

function showLegend(scale, hasCulprit) {
  drawLegend(byId("legend-bar"), scale);
  ["low", "middle", "high"].forEach((name, place) => setText(byId(`legend-${name}`), scale.labels[place]));
  setText(byId("legend-words"), scale.words);
  byId("legend-culprit").hidden = !hasCulprit;
}

function makeMeasures(chosen, onMeasure) {
  for (const { name, label } of MEASURES) {
    const input = element("input", { type: "radio", name: "measure", value: name });
    input.checked = name === chosen;
    input.addEventListener("change", () => onMeasure(name));
    byId("measures").append(element("label", {}, input, element("span", { text: label })));
  }
}
