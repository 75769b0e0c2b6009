// The tip: the values of the cell under the pointer, or of the cell reached with the arrow keys.

import { element } from "./dom.js";
import { rankName, seconds, spansText } from "./format.js";
import { PHASES, cellOf, phaseText } from "./measures.js";

const LINES = [...PHASES, "waited"];
const NAMES = { waited: "waiting" };

// getDrawn: () => {heat, scale, shape} as last drawn, or null. onOpen: called with a cell {row, column} that is clicked,
// or entered with the keyboard. Returns a function that shows the tip again after a new
// drawing.
export function followPointer(canvas, cursor, tip, getDrawn, onOpen) {
  let at = null;

  const show = (cell) => {
    at = cell;
    const drawn = getDrawn();
    const inside = drawn && cell && cell.row < drawn.shape.rows && cell.column < drawn.shape.columns;
    cursor.hidden = tip.hidden = !inside;
    if (!inside) return;
    tip.replaceChildren(...linesOf(drawn, cell));
    place(cursor, tip, drawn.shape, cell);
  };

  const find = (event) => {
    const drawn = getDrawn();
    if (!drawn) return null;
    const column = Math.floor((event.offsetX - drawn.shape.gutter) / drawn.shape.cellWidth);
    const row = drawn.shape.tops.findLastIndex((top) => top <= event.offsetY);
    return column >= 0 && column < drawn.shape.columns && row >= 0 && row < drawn.shape.rows ? { row, column } : null;
  };

  canvas.addEventListener("pointermove", (event) => show(find(event)));
  canvas.addEventListener("pointerdown", (event) => show(find(event)));
  canvas.addEventListener("click", (event) => {
    const cell = find(event);
    if (cell) onOpen(cell);
  });
  canvas.addEventListener("pointerleave", () => show(null));
  canvas.addEventListener("blur", () => show(null));
  canvas.addEventListener("keydown", (event) => {
    const drawn = getDrawn();
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") show(null);
    if (event.key === "Enter" && drawn && at) onOpen(at);
    if (!drawn || !move) return;
    event.preventDefault();
    const from = at ?? { row: 0, column: drawn.shape.columns - 1 };
    show({
      row: Math.min(drawn.shape.rows - 1, Math.max(0, from.row + (at ? move[0] : 0))),
      column: Math.min(drawn.shape.columns - 1, Math.max(0, from.column + (at ? move[1] : 0))),
    });
  });
  return () => show(at);
}

function linesOf({ heat, scale }, { row, column }) {
  const cell = cellOf(heat, row, column);
  const rank = heat.rows[row];
  const one = heat.shown ? { ...rank, first: heat.shown[row][column], count: 1, node: rank.node } : rank;
  const title = element("strong", { text: rankName(one) });
  const step = `Step ${heat.steps[column]}`;
  if (!cell) return [title, element("p", { text: `${step}: not seen` })];
  const median = Object.fromEntries([...LINES, "own", "step"].map((name) => [name, heat.median_seconds[name][column]]));
  const longest = Math.max(...LINES.map((name) => Math.max(cell[name], median[name] ?? 0)), 1e-9);
  const folded = heat.shown ? `, of ranks ${spansText(rank)}` : "";
  return [
    title,
    element("p", { text: `${step}${folded}: ${scale.describe(cell, median)}` }),
    ...LINES.filter((name) => cell[name] > 0 || median[name] > 0).map((name) => barOf(name, cell[name], median[name], longest)),
    element("p", { className: "tip-foot", text: "median of all ranks in this step" }),
  ];
}

function barOf(name, value, median, longest) {
  const fill = element("div", { className: name === "waited" ? "tip-fill wait" : "tip-fill" });
  fill.style.width = `${(100 * value) / longest}%`;
  const mark = element("div", { className: "tip-median" });
  mark.style.left = `calc(${(100 * (median ?? 0)) / longest}% - 1px)`;
  const track = element("div", { className: "tip-track" }, fill, mark);
  return element("div", { className: "tip-row" }, element("span", { text: NAMES[name] ?? phaseText(name) }), track, element("b", { text: seconds(value, longest) }));
}

function place(cursor, tip, shape, { row, column }) {
  const left = Math.round(shape.gutter + column * shape.cellWidth);
  const top = shape.tops[row];
  const height = shape.tops[row + 1] - top;
  Object.assign(cursor.style, {
    left: `${left}px`,
    top: `${top}px`,
    width: `${Math.max(2, Math.round(shape.cellWidth))}px`,
    height: `${height}px`,
  });
  const room = shape.width - tip.offsetWidth;
  const right = left + shape.cellWidth + 14;
  const beside = right <= room ? right : left - tip.offsetWidth - 14;
  const below = top + height + 12;
  const floor = window.innerHeight - tip.offsetParent.getBoundingClientRect().top;
  const above = top - tip.offsetHeight - 12;
  const fits = below + tip.offsetHeight < floor - 8 || above < floor - window.innerHeight;
  Object.assign(tip.style, { left: `${Math.max(0, Math.min(room, beside))}px`, top: `${fits ? below : above}px` });
}
