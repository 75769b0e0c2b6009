// The table of a job's incidents, the newest first.

import { byId, element, setText } from "./dom.js";
import { age, moment } from "./format.js";

const REASONS = {
  recovered: "no longer named",
  job_ended: "the job ended",
  ended_while_down: "the job ended unwatched",
  job_gone: "its agents went silent",
  superseded: "part of another",
};

// `ofAll`: whether they are of all jobs, so that each says which it is of.
export function showIncidents({ incidents, next, now, history }, ofAll) {
  byId("incidents").tBodies[0].replaceChildren(...incidents.map((incident) => rowOf(incident, now, ofAll)));
  byId("incidents").hidden = !incidents.length;
  const open = incidents.filter((incident) => incident.closed_at === null).length;
  const known = incidents.length ? `${open} open, ${incidents.length - open}${next ? " and more" : ""} closed.` : "None is known.";
  const kept = history.state === "on" ? "" : ` No history is kept: ${history.reason}.`;
  setText(byId("incidents-explain"), known + kept);
}

function rowOf(incident, now, ofAll) {
  const isOpen = incident.closed_at === null;
  const what = element("td", { className: "name", text: incident.what });
  const costs = incident.most_recoverable_ratio ? `cost up to ${Math.round(100 * incident.most_recoverable_ratio)} % of the step time` : "";
  const gaps = incident.gaps ? `left out ${incident.gaps} times` : "";
  const job = ofAll ? `job ${incident.job_id} of user ${incident.owner}` : "";
  const sub = [job, costs, gaps, incident.findings.join(", ")].filter(Boolean).join("; ");
  if (sub) what.append(element("span", { className: "sub", text: sub }));
  const state = element("td", { "data-label": "State" });
  state.append(element("span", { className: "state", text: isOpen ? "open" : "closed", "data-tone": isOpen ? "fail" : "" }));
  if (!isOpen) state.append(element("span", { className: "sub", text: REASONS[incident.closed_because] ?? "" }));
  const since = element("td", { "data-label": "Since", className: "short", text: moment(incident.opened_at) });
  const lasted = element("td", { "data-label": "Lasted", className: "short", text: age((isOpen ? now : incident.closed_at) - incident.opened_at) });
  return element("tr", {}, what, state, since, lasted, element("td", { "data-label": "What to do", text: incident.culprit.advice }));
}
