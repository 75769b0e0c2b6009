// The table of nodes, those that need attention first.

import { byId, element, redraw, setLines, setText } from "./dom.js";
import { nameOf, nodeAddress } from "./fleet.js";
import { age, count, number, ranges } from "./format.js";

const TONES = { up: "ok", ok: "ok", fail: "fail", garbage: "fail", down: "fail", slow: "unknown", unknown: "unknown" };
const WORDS = { ok: "passed", fail: "failed", unknown: "unknown", skipped: "skipped" };

const FIRST_NODES = 40; // asked for at first
const MORE_NODES = 400;

let asked = FIRST_NODES;

// How many nodes the table has room for: more after each click on its button.
export const nodesAsked = () => asked;

// `found`: a laggard.nodes/1, those first that need attention. `find`: what they were looked for by; `onMore`: called
// after a click on the button.
export function showNodes(found, { find = "", onMore }) {
  const { nodes, total } = found;
  const culprits = new Map(Object.entries(found.culprits)); // any name may be a node's, also one that every object has
  setLines(byId("fleet"), found.compared);
  // Most nodes of a large fleet are healthy: those that need attention are shown, the others on a click.
  const needAttention = nodes.filter((node) => culprits.has(nameOf(node)) || node.state !== "up" || node.verdict !== "ok").length;
  const shown = asked > FIRST_NODES || find ? nodes.length : needAttention;
  byId("nodes").hidden = !shown;
  redraw(byId("nodes").tBodies[0], nodes.slice(0, shown).map((node) => rowOf(node, culprits.get(nameOf(node)))));
  setText(byId("nodes-explain"), explain(found, find));
  const more = byId("nodes-more");
  more.hidden = shown >= total;
  setText(more, shown ? `Show more: ${number(shown)} of ${number(total)} are shown` : `Show ${count(total, "node")}: nothing is wrong there`);
  more.onclick = () => {
    asked = asked === FIRST_NODES ? MORE_NODES : asked + MORE_NODES;
    onMore();
  };
}

function explain({ total, answering, failing, unnamed, job }, find) {
  if (find) return `${count(total, "node")} ${total === 1 ? "has" : "have"} “${find}”.`;
  if (!total) return "No agent was named: start the collector with --target HOST:PORT.";
  const checks = failing ? ` The checks of ${number(failing)} failed.` : "";
  const others = job && unnamed ? ` ${count(unnamed, "agent")} never said which node ${unnamed === 1 ? "it is" : "they are"} on: see the fleet.` : "";
  const whose = job ? "The job runs on these nodes. " : "";
  return `${whose}${answering === total ? count(answering, "agent") : `${number(answering)} of ${number(total)} agents`} answer${answering === 1 ? "s" : ""}.${checks}${others}`;
}

function rowOf(node, culprit) {
  const name = element("td", { className: "name" }, element("a", { href: nodeAddress(nameOf(node)), text: nameOf(node) }));
  if (node.node) name.append(element("span", { className: "sub", text: node.url.replace(/^https?:\/\//, "") }));
  if (culprit) name.append(element("span", { className: "sub" }, element("span", { className: "state", "data-tone": "culprit", text: culprit })));
  const agent = element("td", { "data-label": "Agent" }, element("div", {}, stateOf(node.state, node.state), ...reasonOf(node)));
  const checks = element("td", { "data-label": "Checks" }, node.verdict ? stateOf(node.verdict, WORDS[node.verdict] ?? node.verdict) : nothing());
  const codes = node.findings.map((code) => element("span", { className: "code", text: code }));
  const findings = element(
    "td",
    { "data-label": "Findings", className: codes.length ? "" : "blank" },
    codes.length ? element("div", { className: "codes" }, ...codes) : nothing(),
  );
  const ranks = element("td", { "data-label": "Ranks", className: node.ranks.length ? "short" : "blank" });
  ranks.append(node.ranks.length ? ranges(node.ranks) : nothing());
  return element("tr", {}, name, agent, checks, findings, ranks);
}

const nothing = () => element("span", { className: "nothing", text: "–" });

const stateOf = (state, word) => element("span", { className: "state", text: word, "data-tone": TONES[state] ?? "" });

function reasonOf(node) {
  const heard = node.state !== "up" && node.last_seen_seconds !== null ? `last heard ${age(node.last_seen_seconds)} ago` : "";
  const text = [node.reason, heard].filter(Boolean).join("; ");
  return text ? [element("span", { className: "sub", text })] : [];
}
