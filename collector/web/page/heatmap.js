// Draws the heat map on its canvas: cells, labels, axis, frames around the culprits. tip.js shows single cells.

import { palette, pick } from "./colours.js";
import { spansText } from "./format.js";

const AXIS = 26;
const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif";

// Returns the geometry: gutter, cellWidth, rows, columns, and tops, the y of each row and of the end of the last.
export function drawHeat(canvas, heat, scale, culprits) {
  const pen = canvas.getContext("2d");
  const theme = themeOf(canvas);
  const marked = heat.rows.map((row) => culprits.find((culprit) => holds(row, culprit.ranks)));
  const shape = shapeOf(canvas, heat, pen, marked);
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${shape.height}px`;
  canvas.width = Math.round(shape.width * ratio);
  canvas.height = Math.round(shape.height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = FONT;
  drawCells(pen, shape, scale, theme);
  drawAxis(pen, shape, heat, theme);
  drawLabels(pen, shape, heat, marked, theme);
  drawCulprits(pen, shape, heat, culprits, theme);
  return shape;
}

export function drawLegend(canvas, scale) {
  const colours = palette(scale.kind, isDark());
  const pen = canvas.getContext("2d");
  canvas.width = colours.length;
  canvas.height = 1;
  colours.forEach((colour, place) => {
    pen.fillStyle = colour;
    pen.fillRect(place, 0, 1, 1);
  });
}

export const isDark = () => window.matchMedia("(prefers-color-scheme: dark)").matches;

export const has = (row, rank) => row.spans.some(([first, last]) => rank >= first && rank <= last);

export const holds = (row, ranks) => ranks.some((rank) => has(row, rank));

function themeOf(canvas) {
  const style = getComputedStyle(canvas);
  const token = (name) => style.getPropertyValue(name).trim();
  return { ink: token("--ink"), quiet: token("--ink-2"), line: token("--line"), card: token("--card"), fail: token("--fail") };
}

// The y of each row. Where rows are thin, a culprit's is made thick enough to be seen.
function topsOf(marked, rowHeight) {
  const thick = marked.filter(Boolean).length <= 16 ? Math.max(rowHeight, 14) : rowHeight;
  const tops = [0];
  for (const culprit of marked) tops.push(tops[tops.length - 1] + (culprit ? thick : rowHeight));
  return tops;
}

function shapeOf(canvas, heat, pen, marked) {
  const width = canvas.clientWidth;
  const rows = heat.rows.length;
  const columns = heat.steps.length;
  // Few ranks get tall rows, many get thin ones; rows of less than two pixels are hard to find.
  const rowHeight = Math.max(2, Math.min(30, Math.floor(480 / rows)));
  pen.font = `600 ${FONT}`; // as the culprits' labels are written
  const widest = Math.max(...heat.rows.map((row, place) => pen.measureText(labelOf(row, marked[place])).width));
  const gutter = Math.ceil(Math.min(widest + 28, Math.max(72, width * 0.2)));
  const tops = topsOf(marked, rowHeight);
  return { width, height: tops[rows] + AXIS, gutter, rows, columns, tops, rowHeight, cellWidth: (width - gutter) / columns };
}

function drawCells(pen, shape, scale, theme) {
  const colours = palette(scale.kind, isDark());
  const gap = shape.cellWidth > 5 && shape.rowHeight > 7 ? 1 : 0;
  for (let row = 0; row < shape.rows; row++) {
    const top = shape.tops[row];
    const height = shape.tops[row + 1] - top - gap;
    for (let column = 0; column < shape.columns; column++) {
      const value = scale.values[row][column];
      const left = Math.round(shape.gutter + column * shape.cellWidth);
      const right = Math.round(shape.gutter + (column + 1) * shape.cellWidth);
      if (value === null) hatch(pen, left, top, right - left - gap, height, theme);
      else {
        pen.fillStyle = pick(colours, scale.share(value));
        pen.fillRect(left, top, right - left - gap, height);
      }
    }
  }
}

// A cell without a value has no colour of the scale, but stripes, as in the legend.
function hatch(pen, left, top, width, height, theme) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  pen.strokeStyle = theme.line;
  pen.lineWidth = 1.5;
  pen.beginPath();
  const from = Math.floor((left + top) / 6) * 6;
  for (let sum = from; sum < left + width + top + height + 6; sum += 6) {
    pen.moveTo(sum - top, top);
    pen.lineTo(sum - top - height, top + height);
  }
  pen.stroke();
  pen.restore();
}

function drawAxis(pen, shape, heat, theme) {
  const top = shape.tops[shape.rows];
  pen.fillStyle = theme.quiet;
  pen.textBaseline = "top";
  const widest = pen.measureText(String(heat.steps[shape.columns - 1])).width;
  const every = niceStep(((widest + 28) / shape.cellWidth) * heat.step_fold);
  let free = shape.gutter - 6;
  for (let column = 0; column < shape.columns; column++) {
    const step = axisStep(heat, column, every);
    if (step === null) continue;
    const x = shape.gutter + (column + 0.5) * shape.cellWidth;
    const half = pen.measureText(String(step)).width / 2;
    if (x - half < free || x + half > shape.width) continue;
    pen.fillRect(Math.round(x), top + 1, 1, 4);
    pen.textAlign = "center";
    pen.fillText(String(step), x, top + 9);
    free = x + half + 12;
  }
  pen.textAlign = "right";
  pen.fillText("step", shape.gutter - 10, top + 9);
}

// The step that the axis names at a column, where a multiple of `every` lies between it and the next: columns of several
// steps seldom begin with one. Null: none.
function axisStep({ steps, step_fold: fold }, column, every) {
  const first = steps[column];
  const round = Math.ceil(first / every) * every;
  if (round >= (steps[column + 1] ?? first + fold)) return null;
  return fold > 1 ? round : first;
}

function niceStep(least) {
  for (let unit = 1; ; unit *= 10) for (const digit of [1, 2, 5]) if (digit * unit >= least) return digit * unit;
}

const LINE = 15; // pixels between two labels

// Writes the labels of the culprits first, then as many of the others as there is room for.
function drawLabels(pen, shape, heat, marked, theme) {
  const taken = [];
  const write = (row, colour, bold) => {
    const middle = Math.max(7, (shape.tops[row] + shape.tops[row + 1]) / 2);
    if (taken.some((other) => Math.abs(other - middle) < LINE)) return;
    taken.push(middle);
    writeLabel(pen, shape, labelOf(heat.rows[row], marked[row]), middle, colour, bold);
  };
  pen.textBaseline = "middle";
  marked.forEach((culprit, row) => culprit && write(row, theme.fail, true));
  marked.forEach((culprit, row) => culprit || write(row, theme.quiet, false));
}

function writeLabel(pen, shape, text, y, colour, bold) {
  pen.font = bold ? `600 ${FONT}` : FONT;
  pen.fillStyle = colour;
  pen.textAlign = "right";
  pen.fillText(fitted(pen, text, shape.gutter - 24), shape.gutter - 10, y);
  pen.font = FONT;
  if (!bold) return;
  pen.beginPath();
  pen.moveTo(0, y - 5);
  pen.lineTo(8, y);
  pen.lineTo(0, y + 5);
  pen.fill();
}

// The label of a row; a folded row that holds a culprit has the culprit's.
function labelOf(row, culprit) {
  const rank = culprit?.ranks.find((each) => has(row, each));
  const numbers = spansText(row);
  const node = rank === undefined ? row.node : culprit.node;
  const place = row.position === null ? null : `position ${row.position}`;
  return [place, rank === undefined ? numbers : `${rank}`, node].filter((part) => part !== null && part !== undefined).join(" · ");
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const [start, ...others] = text.split(" · "); // rather a number without its node than a piece of a name
  if (others.length && pen.measureText(`${start} · WW…`).width > width && pen.measureText(start).width <= width) return start;
  let end = text.length;
  while (end > 1 && pen.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return `${text.slice(0, end)}…`;
}

// Draws a frame around each culprit's row, from the step in which it began to be slow.
function drawCulprits(pen, shape, heat, culprits, theme) {
  for (const culprit of culprits) {
    const since = heat.steps.findIndex((step) => step >= (culprit.since_step ?? -1));
    const left = Math.round(shape.gutter + Math.max(0, since) * shape.cellWidth);
    heat.rows.forEach((row, place) => {
      if (!holds(row, culprit.ranks)) return;
      const top = shape.tops[place];
      pen.strokeStyle = theme.ink;
      pen.lineWidth = 2;
      pen.strokeRect(left, top + 1, shape.width - left - 1, shape.tops[place + 1] - top - 2);
    });
  }
}
