// A machine's history: how often it failed, how long it was down, what was repaired and what came back.

import { byId, element, onChange, setText } from "./dom.js";
import { age, count, moment } from "./format.js";

const MOST = 30;

const ENDS = { repaired: "repaired", cancelled: "taken back, no failure", replaced: "another machine has its name", gone: "not heard of any more" };

// `found`: a laggard.node_history/1.
export const showHistory = onChange((found) => {
  const { faults, incidents, failures, is_repeat_offender: often, returned, names, node } = found;
  byId("history-card").hidden = !faults.length && !incidents.length;
  const words = [
    often ? "It fails again and again: three failures in 30 days, or one within a week of a repair." : "",
    returned ? `What had been over came back within a week: ${count(returned, "time")}.` : "",
    names.length > 1 ? `It was called ${names.filter((it) => it.node !== node).map((it) => it.node).join(", ")} before.` : "",
  ];
  setText(byId("history-explain"), words.filter(Boolean).join(" ") || `${count(failures, "failure")}, ${count(incidents.length, "incident")}.`);
  byId("history-figures").replaceChildren(...figuresOf(found));
  byId("history").tBodies[0].replaceChildren(...faults.slice(0, MOST).map((fault) => rowOf(fault, found.now)));
});

function figuresOf({ failures, failures_lately: lately, mtbf_seconds: between, mttr_seconds: repair, repaired, watched_since: since }) {
  const codes = Object.entries(repaired).map(([code, times]) => (times > 1 ? `${code} (${times})` : code));
  const figures = [
    ["failures", `${failures}, ${lately} in 30 days`],
    ["time between them", between === null ? "none yet" : age(between)],
    ["time to repair", repair === null ? "none is over" : age(repair)],
    ["repaired", codes.join(", ") || "nothing"],
  ];
  if (since !== null) figures.push(["watched since", moment(since)]);
  return figures.map(([term, value]) => element("div", {}, element("dt", { text: term }), element("dd", {}, value)));
}

function rowOf({ code, device, severity, opened_at: began, closed_at: ended, closed_because: why, returned }, now) {
  const what = element("td", { className: "name" }, element("a", { href: `/findings/${encodeURIComponent(code)}`, text: code }), element("span", { className: "sub", text: severity }));
  if (returned) what.append(element("span", { className: "sub", text: `came back after ${age(Math.max(0, began - returned.ended_at))}` }));
  const cell = (label, value) => element("td", { "data-label": label }, value);
  const end = ended === null ? element("span", { className: "state", "data-tone": severity === "critical" ? "fail" : "unknown", text: "open" }) : (ENDS[why] ?? "");
  return element("tr", {}, what, cell("Device", device), cell("Began", moment(began)), cell("Lasted", age(Math.max(0, (ended ?? now) - began))), cell("Ended", end));
}
