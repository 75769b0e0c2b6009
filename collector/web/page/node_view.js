// One node's view: whether it is fit, what its agent says, the ranks that run on it, and how it differs from the fleet.

import { toneOf } from "./fleet.js";
import { byId, element, setLines, setText } from "./dom.js";
import { age, count, ranges } from "./format.js";

const SENTENCES = {
  ok: "is fit: its checks passed",
  fail: "fails its checks",
  unknown: "is not known to be fit: its checks could not tell",
  silent: "does not answer",
  wait: "has not been asked yet",
};
const VERDICTS = { ok: "ok", fail: "fail" };

// `found`: the laggard.nodes/1 of that node alone; `findings`: how many it has.
export function showNode(name, found, findings) {
  const [node] = found.nodes;
  const tone = node ? toneOf(node) : "";
  byId("node-head").dataset.verdict = VERDICTS[tone] ?? "unknown";
  setText(byId("node-sentence"), node ? `${name} ${SENTENCES[tone]}.` : `No agent reports a node ${name}.`);
  byId("node-facts").replaceChildren(...(node ? factsOf(node, findings) : []));
  const before = `${name}: `;
  setLines(byId("node-differs"), found.compared.map((line) => (line.startsWith(before) ? line.slice(before.length) : line)));
}

function factsOf(node, findings) {
  const address = /^https?:\/\/[^/]+$/.test(node.url) ? element("a", { href: node.url, text: node.url.replace(/^https?:\/\//, "") }) : node.url;
  const heard = node.last_seen_seconds === null ? "never" : `${age(node.last_seen_seconds)} ago`;
  const facts = [
    ["agent", address],
    ["last heard", heard],
    ["findings", `${findings}`],
    ["ranks", node.ranks.length ? `${count(node.ranks.length, "rank")}: ${ranges(node.ranks)}` : "none"],
    ["last ring", node.ring_age_seconds === null ? "none" : `${age(node.ring_age_seconds)} ago`],
  ];
  if (node.reason) facts.push(["why", node.reason]);
  return facts.map(([term, value]) => element("div", {}, element("dt", { text: term }), element("dd", {}, value)));
}
