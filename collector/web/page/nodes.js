// The table of nodes, those that need attention first.

import { byId, element, setLines, setText } from "./dom.js";
import { nameOf, nodeAddress } from "./fleet.js";
import { age, count, ranges } from "./format.js";

const FEW = 20;
const ORDER = ["garbage", "down", "slow", "waiting", "up"];
const TONES = { up: "ok", ok: "ok", fail: "fail", garbage: "fail", down: "fail", slow: "unknown", unknown: "unknown" };
const WORDS = { ok: "passed", fail: "failed", unknown: "unknown", skipped: "skipped" };

let showAll = false;

export function showNodes(nodes, fleet) {
  setLines(byId("fleet"), fleet);
  const sorted = [...nodes].sort((a, b) => weight(a) - weight(b) || (a.node ?? a.url).localeCompare(b.node ?? b.url, "en", { numeric: true }));
  // Most nodes of a large fleet are healthy: those that need attention are shown, the others on a click.
  const needAttention = sorted.filter((node) => weight(node) < weight({ state: "up", verdict: "ok" })).length;
  const shown = showAll ? sorted.length : Math.max(FEW, Math.min(needAttention, 5 * FEW));
  byId("nodes").tBodies[0].replaceChildren(...sorted.slice(0, shown).map(rowOf));
  setText(byId("nodes-explain"), explain(nodes));
  const more = byId("nodes-more");
  more.hidden = shown >= sorted.length;
  setText(more, `Show all ${nodes.length}`);
  more.onclick = () => {
    showAll = true;
    showNodes(nodes, fleet);
  };
}

function weight(node) {
  return ORDER.indexOf(node.state) * 2 + (node.verdict === "ok" ? 1 : 0);
}

function explain(nodes) {
  const up = nodes.filter((node) => node.state === "up").length;
  if (!nodes.length) return "No agent was named: start the collector with --target HOST:PORT.";
  const failed = nodes.filter((node) => node.verdict === "fail").length;
  const checks = failed ? ` The checks of ${failed} failed.` : "";
  return `${up === nodes.length ? count(up, "agent") : `${up} of ${nodes.length} agents`} answer${up === 1 ? "s" : ""}.${checks}`;
}

function rowOf(node) {
  const name = element("td", { className: "name" }, element("a", { href: nodeAddress(nameOf(node)), text: nameOf(node) }));
  if (node.node) name.append(element("span", { className: "sub", text: node.url.replace(/^https?:\/\//, "") }));
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
