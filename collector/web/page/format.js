// Formats numbers and names for people.

// In the unit of the larger of the two, so that a value compares with the one `beside` it at sight.
export function seconds(value, beside = value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const larger = Math.max(Math.abs(value), Math.abs(beside ?? 0));
  const [scale, unit] = larger >= 1 ? [1, "s"] : larger >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const size = Math.abs(value * scale);
  return `${(value * scale).toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2)} ${unit}`;
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

// The same, without its date where that is less than half a day before `now`.
export const clock = (seconds, now) => (now - seconds < 43200 ? new Date(1000 * seconds).toLocaleTimeString(undefined, { timeStyle: "short" }) : moment(seconds));

export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

export const number = (value) => value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 10 ? 1 : 0 });

export const count = (many, noun) => `${number(many)} ${noun}${many === 1 ? "" : "s"}`;

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
