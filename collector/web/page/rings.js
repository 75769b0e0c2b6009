// What the last ring measured between its nodes: a matrix of bus bandwidths, the slow node or link marked in it.

import { nodeAddress } from "./fleet.js";
import { byId, element, onChange, setText } from "./dom.js";
import { age } from "./format.js";

const LOW = 0.8; // of the median: told apart from the others, and no verdict

// `newest`: a laggard.newest_ring/1.
export function showRings(newest) {
  byId("rings-card").hidden = !newest.pairs;
  if (!newest.pairs) return;
  draw(newest.pairs);
  const { nodes: names, size_bytes: size, slow_nodes: slow, slow_links: links } = newest.pairs;
  const words = [
    `${newest.measured} pairs of ${newest.nodes} nodes, each alone, ${age(newest.age_seconds)} ago: bus bandwidth in GB/s of all-reduces of ${size >= 1 << 20 ? `${+(size / 1048576).toFixed(1)} MiB` : `${size} bytes`}.`,
    slow.length ? `Slow: ${slow.map((place) => names[place]).join(", ")}.` : "",
    links.length ? `Slow between ${links.map(([a, b]) => `${names[a]} and ${names[b]}`).join("; ")}.` : "",
    slow.length || links.length ? "" : "No node and no link is slow.",
    names.length < newest.nodes ? `Shown are ${names.length} of them: the slow ones, and those with the slowest pairs.` : "",
  ];
  setText(byId("rings-explain"), words.filter(Boolean).join(" "));
}

const draw = onChange(({ nodes, pairs, slow_nodes: slow, slow_links: links }) => {
  const rates = new Map(pairs.flatMap(([a, b, rate]) => [[`${a}-${b}`, rate], [`${b}-${a}`, rate]]));
  const known = pairs.map(([, , rate]) => rate).filter((rate) => rate !== null).sort((a, b) => a - b);
  const median = known[Math.floor(known.length / 2)] ?? 0;
  const accused = new Set(links.flatMap(([a, b]) => [`${a}-${b}`, `${b}-${a}`]));
  const rateOf = (a, b) => {
    const rate = rates.get(`${a}-${b}`);
    if (a === b) return ["self", "", "itself"];
    if (rate === undefined) return ["none", "", "not measured"];
    if (rate === null) return ["slow", "✕", "failed"];
    const text = (rate / 1e9).toPrecision(3);
    if (accused.has(`${a}-${b}`) || slow.includes(a) || slow.includes(b)) return ["slow", text, `${text} GB/s, slow`];
    return [rate < LOW * median ? "low" : "good", text, `${text} GB/s`];
  };
  const places = nodes.map((_, place) => place);
  const head = (place, scope) => element("th", { scope, className: slow.includes(place) ? "accused" : "" }, element("a", { href: nodeAddress(nodes[place]), text: nodes[place] }));
  const cell = (a, b) => {
    const [kind, text, words] = rateOf(a, b);
    return element("td", { "data-rate": kind, title: `${nodes[a]} and ${nodes[b]}: ${words}`, text });
  };
  const top = element("tr", {}, element("td", { "data-rate": "self" }), ...places.map((place) => head(place, "col")));
  const rows = places.map((a) => element("tr", {}, head(a, "row"), ...places.map((b) => cell(a, b))));
  byId("matrix").replaceChildren(element("thead", {}, top), element("tbody", {}, ...rows));
});
