// Formats numbers and names for people.

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 10) return `${value.toFixed(1)} s`;
  if (size >= 0.1) return `${value.toFixed(3)} s`;
  if (size >= 0.001) return `${(value * 1e3).toFixed(size >= 0.01 ? 1 : 2)} ms`;
  return size === 0 ? "0" : `${(value * 1e6).toFixed(0)} µs`;
}

// For axes and legends: as few digits as show the value.
export function shortSeconds(value) {
  const size = Math.abs(value);
  if (size >= 1 || size === 0) return `${+value.toPrecision(3)} s`;
  if (size >= 0.001) return `${+(value * 1e3).toPrecision(3)} ms`;
  return `${+(value * 1e6).toPrecision(3)} µs`;
}

export const times = (ratio) => `${ratio >= 10 ? ratio.toFixed(1) : ratio.toFixed(2)}×`;

export const percent = (share) => `${+(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

export function age(value) {
  if (value < 90) return `${Math.max(0, Math.round(value))} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${Math.round(value / 3600)} h`;
}

// A moment in Unix seconds, in words that a narrow column breaks between, not in numbers.
export const moment = (seconds) => new Date(1000 * seconds).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// Consecutive numbers as ranges: 0–3, 7, 9–11.
export function ranges(numbers) {
  const runs = [];
  for (const number of numbers) {
    const last = runs[runs.length - 1];
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  const words = runs.slice(0, 6).map(([first, last]) => (first === last ? `${first}` : `${first}\u2060–\u2060${last}`)); // which no line break parts
  return words.join(", ") + (runs.length > 6 ? ", ..." : "");
}

// The ranks of a row of the heat map.
export function spansText({ spans }) {
  const words = spans.slice(0, 3).map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  return words.join(", ") + (spans.length > 3 ? ", …" : "");
}

export function rankName(row) {
  const ranks = row.count > 1 ? `Ranks ${spansText(row)}` : `Rank ${row.first}`;
  return row.node ? `${ranks} on ${row.node}` : ranks;
}
