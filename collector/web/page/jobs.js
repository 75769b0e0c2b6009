// Jobs by what people know them by: the user, the script and when it started; a launcher's own number comes last.

import { element } from "./dom.js";
import { moment, number } from "./format.js";

const TONES = { ok: "ok", fail: "fail", unknown: "unknown" };
const WORDS = { ok: "no culprit", fail: "has a culprit", unknown: "cannot tell" };
const NUMBER = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}$|^(job-[0-9a-f]{12}|[0-9a-f]{16,})$/; // torchrun's UUIDs, the hooks' own, hashes

// The words for a job in a list of `jobs`: as few as tell it from the others.
export function jobLabel(line, jobs) {
  const severalUsers = jobs.some((other) => other.owner !== line.owner);
  const state = [line.running ? "" : "ended", line.verdict === "fail" ? WORDS.fail : ""].filter(Boolean).join(", ");
  const alike = jobs.filter((other) => titleOf(other) === titleOf(line) && other.owner === line.owner).length > 1;
  const remarks = [severalUsers ? `user ${line.user || line.owner}` : "", state, alike || NUMBER.test(line.job_id) ? since(line) : ""];
  const remark = remarks.filter(Boolean).join(", ");
  return remark ? `${titleOf(line)} (${remark})` : titleOf(line);
}

// A name that somebody gave stands; of a number nobody reads, the script stands in its place.
export const titleOf = ({ job_id: id, script }) => (script && NUMBER.test(id) ? script : id);

const since = ({ started_at: started }) => (started ? `since ${moment(started)}` : "");

// A job by its name, where `known` says more about it: {user, script, started_at}, as of laggard.incidents/1.
export function jobName(id, known) {
  if (!known) return `job ${id}`;
  const { user, script, started_at: started } = known;
  return [`${titleOf({ job_id: id, script })} of ${user}`, started ? since(known) : ""].filter(Boolean).join(", ");
}

// A row of the table of jobs. `address`: of the job's own view.
export function jobRow(line, address) {
  const name = element("td", { className: "name" }, element("a", { href: address, text: titleOf(line) }));
  const sub = [line.script && titleOf(line) !== line.script ? line.script : "", titleOf(line) === line.job_id ? "" : line.job_id];
  if (sub.some(Boolean)) name.append(element("span", { className: "sub", text: sub.filter(Boolean).join("; ") }));
  const verdict = element("td", { "data-label": "Verdict" });
  const word = element("span", { className: "state", text: WORDS[line.verdict] ?? line.verdict, "data-tone": TONES[line.verdict] ?? "" });
  verdict.append(element("div", {}, word, element("span", { className: "sub", text: line.sentence })));
  const user = element("td", { "data-label": "User", className: "short", text: line.user || `${line.owner}` });
  const started = element("td", { "data-label": "Started", className: "short", text: line.started_at ? moment(line.started_at) : "–" });
  const ranks = element("td", { "data-label": "Ranks", className: "short", text: `${number(line.ranks)}${line.running ? "" : ", ended"}` });
  return element("tr", {}, name, user, started, ranks, verdict);
}
