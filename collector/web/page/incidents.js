// Incidents, the newest first; each opens to its evidence: how it began, how it was last, and what to do.

import { writeAddress } from "./address.js";
import { byId, element, setText } from "./dom.js";
import { age, capital, count, moment, ranges } from "./format.js";
import { jobName } from "./jobs.js";

const REASONS = {
  recovered: "no longer named",
  job_ended: "the job ended",
  ended_while_down: "the job ended unwatched",
  job_gone: "its agents went silent",
  superseded: "part of another",
};

const opened = new Set(); // by id: what is open stays so when it is drawn anew

// `ofAll`: whether they are of all jobs, so that each says which it is of. `asked`: the incident that a link names, or
// null, and `found` that incident, or null where there is none.
export function showIncidents({ incidents, next, now, history, jobs }, ofAll, asked = null, found = null) {
  const listed = found && !incidents.some(({ id }) => id === found.id) ? [found, ...incidents] : incidents;
  if (found && !byId(nameOf(found))) opened.add(found.id);
  const focused = document.activeElement?.closest?.("#incidents details")?.id;
  byId("incidents").replaceChildren(...listed.map((incident) => boxOf(incident, now, jobs, ofAll)));
  if (focused) byId(focused)?.querySelector("summary").focus();
  const open = incidents.filter((incident) => incident.closed_at === null).length;
  const known = incidents.length ? `${open} open, ${incidents.length - open}${next ? " and more" : ""} closed.` : "None is known.";
  const kept = history.state === "on" ? "" : ` No history is kept: ${history.reason}.`;
  const gone = asked !== null && !found ? ` Incident ${asked} is not known here, or no longer.` : "";
  byId("incidents-card").hidden = !listed.length && !gone && history.state !== "failed";
  setText(byId("incidents-explain"), known + kept + gone);
}

const nameOf = ({ id }) => `incident-${id}`;

function boxOf(incident, now, jobs, ofAll) {
  const key = `${incident.owner}:${incident.job_id}`;
  const box = element("details", { className: "incident", id: nameOf(incident) }, summaryOf(incident, now, ofAll ? jobName(incident.job_id, jobs[key]) : ""));
  box.open = opened.has(incident.id);
  box.addEventListener("toggle", () => (box.open ? opened.add(incident.id) : opened.delete(incident.id)));
  box.append(...storyOf(incident), linksOf(incident, key));
  return box;
}

function summaryOf(incident, now, job) {
  const isOpen = incident.closed_at === null;
  const costs = incident.most_recoverable_ratio ? `cost up to ${Math.round(100 * incident.most_recoverable_ratio)} % of the step time` : "";
  const hours = incident.lost_gpu_hours >= 0.05 ? `took ${incident.lost_gpu_hours.toFixed(1)} GPU-hours` : "";
  const back = incident.returned ? `came back: it had been over for ${age(Math.max(0, incident.opened_at - incident.returned.ended_at))}` : "";
  const sub = [job, costs, hours, back, incident.gaps ? `left out ${count(incident.gaps, "time")}` : ""].filter(Boolean).join("; ");
  const what = element("span", { className: "incident-what" }, element("b", { text: incident.what }));
  if (sub) what.append(element("span", { className: "sub", text: sub }));
  const state = element("span", {}, element("span", { className: "state", text: isOpen ? "open" : "closed", "data-tone": isOpen ? "fail" : "" }));
  if (!isOpen) state.append(element("span", { className: "sub", text: REASONS[incident.closed_because] ?? "" }));
  const lasted = age((isOpen ? now : incident.closed_at) - incident.opened_at);
  const since = element("span", {}, moment(incident.opened_at), element("span", { className: "sub", text: isOpen ? `for ${lasted}` : `lasted ${lasted}` }));
  return element("summary", {}, state, what, since);
}

// What shows it. An incident that stayed as it began is told once.
function storyOf({ opened_as: first, culprit: last, opened_at: opened_at, seen_at: seen, closed_at: closed }) {
  const same = JSON.stringify(first) === JSON.stringify(last);
  const parts = same ? [] : [chapterOf(`As it began, ${moment(opened_at)}`, first)];
  parts.push(chapterOf(`${closed === null ? "Now" : "At last"}, ${moment(seen)}`, last));
  const todo = last.advice ? [element("p", {}, element("b", { text: "What to do: " }), capital(last.advice))] : [];
  return [...todo, ...parts];
}

function chapterOf(title, culprit) {
  const { phase, group, ranks, nodes, node, recoverable_ratio: saved } = culprit;
  const facts = [
    ranks.length ? `ranks ${ranges(ranks)}` : "",
    node ?? nodes.join(", "),
    phase ? `in ${phase}` : "",
    group ? `group ${group}` : "",
    saved ? `${Math.round(100 * saved)} % of the step time` : "",
  ];
  const lines = [facts.filter(Boolean).join("; "), ...culprit.evidence].filter(Boolean);
  return element("div", { className: "chapter" }, element("h3", { text: title }), element("ul", {}, ...lines.map((text) => element("li", { text }))));
}

function linksOf(incident, key) {
  const at = { view: "job", job: key, measure: "own", order: "rank", zoom: null, rank: null };
  const links = incident.findings.map((code) => element("a", { href: `/findings/${encodeURIComponent(code)}`, text: code }));
  links.push(element("a", { href: writeAddress({ ...at, card: "changes" }), text: "What to change in this job" }));
  links.push(element("a", { href: writeAddress({ ...at, incident: incident.id }), text: "Link to this incident" }));
  return element("p", { className: "links" }, ...links);
}
