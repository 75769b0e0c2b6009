// Colour scales. Blue is below and orange above, which all common kinds of colour blindness can tell apart; lightness
// changes in even steps (colours are mixed in OKLab); and the further from normal a value is, the more its colour differs
// from the background.

const STOPS = {
  light: {
    diverging: ["#1c5fa8", "#7fb0dd", "#e9edf1", "#f0a45c", "#c24f0b", "#5e1b02"],
    places: [0, 0.25, 0.5, 0.68, 0.85, 1],
    sequential: ["#e9edf1", "#b5aedd", "#7a68bb", "#43307f"],
  },
  dark: {
    diverging: ["#8cc4ff", "#3a76b5", "#26303b", "#9a5518", "#f08a2c", "#ffe2b3"],
    places: [0, 0.25, 0.5, 0.68, 0.85, 1],
    sequential: ["#26303b", "#5a4f96", "#9485de", "#e2dcff"],
  },
};

const SIZE = 256;
const cache = new Map();

// Returns a table of SIZE CSS colours, from low to high. kind: diverging or sequential.
export function palette(kind, dark) {
  const key = `${kind}-${dark}`;
  if (!cache.has(key)) {
    const { [kind]: colours, places } = STOPS[dark ? "dark" : "light"];
    const stops = kind === "diverging" ? places : colours.map((_, place) => place / (colours.length - 1));
    cache.set(key, Array.from({ length: SIZE }, (_, index) => mixed(colours.map(toLab), stops, index / (SIZE - 1))));
  }
  return cache.get(key);
}

// The colour for a share of the scale, 0 to 1; values beyond are clipped.
export const pick = (colours, share) => colours[Math.round(Math.min(1, Math.max(0, share)) * (SIZE - 1))];

function mixed(labs, stops, share) {
  const right = Math.max(1, stops.findIndex((stop) => stop >= share));
  const part = (share - stops[right - 1]) / (stops[right] - stops[right - 1]);
  return toCss(labs[right - 1].map((from, axis) => from + (labs[right][axis] - from) * part));
}

function toLab(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => linear(parseInt(hex.slice(at, at + 2), 16) / 255));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function toCss([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const channels = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((value) => Math.round(255 * gamma(Math.min(1, Math.max(0, value)))));
  return `rgb(${channels.join(" ")})`;
}

const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const gamma = (value) => (value <= 0.0031308 ? value * 12.92 : 1.055 * value ** (1 / 2.4) - 0.055);
