// Asks the collector every few seconds and shows the answer. Changes nothing there.

import { readAddress, writeAddress } from "./address.js";
import { showAnswer } from "./answer.js";
import { showChanges } from "./changes.js";
import { byId, element, setText } from "./dom.js";
import { showFindings } from "./findings.js";
import { showFleet } from "./fleet.js";
import { age } from "./format.js";
import { heatView } from "./heat_view.js";
import { showHistory } from "./history.js";
import { showIncidents } from "./incidents.js";
import { jobLabel } from "./jobs.js";
import { showLinks } from "./links.js";
import { mapControls } from "./map_controls.js";
import { showNode } from "./node_view.js";
import { nodesAsked, showNodes } from "./nodes.js";
import { rankView } from "./rank_view.js";
import { showRings } from "./rings.js";
import { showStacks } from "./stacks.js";
import { showWaits } from "./waits.js";

const ROWS = 230; // the map gets no taller than two pixels for each of so many rows

const INCIDENTS = 20;

const MOST_INCIDENTS = 50; // of all jobs together

const FINDINGS = 100;

const JOBS = 40;

const state = {
  ...readAddress(location),
  summary: null,
  answeredAt: null,
  lostAt: null,
};

// Shows another view. `back`: whether the browser's back button leads from it to this one.
function look(changes, back = false) {
  Object.assign(state, changes);
  history[back ? "pushState" : "replaceState"](null, "", writeAddress(state));
  return "job" in changes ? refresh() : refreshMap();
}

const drawHeat = heatView({
  measure: state.measure,
  onMeasure: (measure) => look({ measure }),
  onRow: openCell,
});
const showControls = mapControls({
  onOrder: (order) => look({ order, zoom: null }),
  onZoomOut: () => look({ zoom: null }, true),
});
const showRank = rankView({ onRank: (rank) => look({ rank }, true) });

// A row of several ranks opens into these; the rank that its cell shows is the one whose steps appear below.
async function openCell(row, heat, { row: place, column }) {
  const rank = heat.shown ? heat.shown[place][column] : row.first;
  const zoom = row.count > 1 ? [row.at, row.at + row.count] : state.zoom;
  await look({ rank, zoom }, true);
  byId("rank-card").scrollIntoView({ block: "nearest" });
}

// A busy collector of tens of thousands of ranks answers late; one that is gone refuses at once.
const PATIENCE_MS = 30000;

// `job`: null for all jobs; without a name it is the one that loses most, else the latest.
async function ask(path, parameters = {}, job = state.job ?? "") {
  const query = new URLSearchParams(parameters);
  if (job !== null) query.set("job", job);
  const response = await fetch(`${path}?${query}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (response.status === 409) return null; // several users have a job of that name: the summary says so
  if (!response.ok) throw new Error(`${path}: HTTP ${response.status}`);
  return response.json();
}

function mapAsked() {
  // Rows of two pixels can hardly be clicked, and their answer takes long: a part has at most so many.
  const zoom = state.zoom ? { start: state.zoom[0], stop: state.zoom[1], rows: 128 } : {};
  return { measure: state.measure, order: state.order, rows: ROWS, ...zoom };
}

const linksFor = (parameters = {}, job = state.job ?? "") => ask("/api/v1/links", parameters, job);

const asksMap = () => [
  ask("/api/v1/ranks", mapAsked()),
  ask("/api/v1/timeline", state.rank === null ? {} : { ranks: state.rank }),
  state.rank === null ? null : linksFor({ rank: state.rank }),
];

function showMap(heat, timeline, links) {
  drawHeat(heat, state.summary, emptyText(heat, state.summary.location));
  showControls(heat);
  showRank(timeline, state.rank);
  showLinks("rank-links", links);
  showWaits(timeline);
}

// What the reader has chosen, without waiting for all else.
async function refreshMap() {
  if (!state.summary || state.view !== "job") return refresh();
  return attempt(asksMap(), showMap);
}

// The incident that a link names: of all, the newest that is not newer than its id.
const incidentAsked = () => (state.incident === null ? null : incidentsAsked({ before: state.incident + 1, limit: 1 }));

function showAllIncidents(incidents, one, ofAll) {
  const found = one?.incidents.find(({ id }) => id === state.incident) ?? null;
  const isNew = found && !byId(`incident-${found.id}`);
  showIncidents({ ...incidents, jobs: { ...one?.jobs, ...incidents.jobs } }, ofAll, state.incident, found);
  if (isNew) byId("incidents-card").scrollIntoView();
}

const incidentsAsked = (parameters, job = null) => ask("/api/v1/incidents", parameters, job);

const nodesFor = (parameters, job = null) => ask("/api/v1/nodes", { limit: nodesAsked(), ...parameters }, job);

function answered(summary) {
  Object.assign(state, { summary, answeredAt: performance.now(), lostAt: null });
  showJobs(summary);
}


// All jobs and nodes, or those that the reader looks for.
async function refreshFleet() {
  const find = state.find ? { find: state.find } : {};
  const asked = [
    ask("/api/v1/summary", { limit: JOBS, ...find }),
    ask("/api/v1/tiles", {}, null),
    nodesFor(find),
    ask("/api/v1/rings/newest", {}, null),
    incidentsAsked({ limit: MOST_INCIDENTS }),
    ask("/api/v1/findings", { limit: FINDINGS }, null),
    incidentAsked(),
  ];
  await attempt(asked, (summary, tiles, nodes, ring, incidents, findings, one) => {
    answered(summary);
    showFindings(findings);
    showFleet({ tiles, jobs: summary.jobs, counts: summary.counts, find: state.find });
    showRings(ring);
    showNodes(nodes, { find: state.find, onMore: refresh });
    showAllIncidents(incidents, one, true);
    document.title = `${byId("fleet-sentence").textContent} · laggard`;
  });
}

async function refreshNode() {
  const { node } = state;
  const asked = [ask("/api/v1/summary"), nodesFor({ node }), incidentsAsked({ limit: MOST_INCIDENTS, node }), ask("/api/v1/findings", { limit: FINDINGS, node }, null), linksFor({ node }, null), ask("/api/v1/history", { node }, null)];
  await attempt(asked, (summary, nodes, incidents, findings, links, past) => {
    answered(summary);
    showFindings(findings);
    showNode(node, nodes, findings.total);
    showHistory(past);
    showLinks("node-links", links);
    showAllIncidents(incidents, null, true);
    document.title = `${byId("node-sentence").textContent} · laggard`;
  });
}

function showView() {
  const main = document.querySelector("main");
  if (main.dataset.view !== state.view) main.dataset.view = state.view;
  const at = { job: byId("to-job"), fleet: byId("to-fleet") };
  for (const [view, link] of Object.entries(at)) {
    if (view === state.view) link.setAttribute("aria-current", "page");
    else if (view === "fleet" && state.view === "node") link.setAttribute("aria-current", "true"); // a node is of the fleet
    else link.removeAttribute("aria-current");
  }
  const plain = { job: state.job, measure: "own", order: "rank", zoom: null, rank: null };
  at.job.href = writeAddress({ ...plain, view: "job" });
  at.fleet.href = writeAddress({ ...plain, view: "fleet" });
}

async function refresh() {
  showView();
  if (state.view === "fleet") return refreshFleet();
  if (state.view === "node") return refreshNode();
  const job = state.job ?? "";
  const others = [ask("/api/v1/summary"), nodesFor({}, job), incidentsAsked({ limit: INCIDENTS }, job), ask("/api/v1/findings", { limit: FINDINGS }), linksFor(), incidentAsked()];
  await attempt([...asksMap(), ...others], (heat, timeline, rankLinks, summary, nodes, incidents, findings, links, one) => {
    answered(summary);
    showAnswer(summary, incidents);
    showStacks(summary.location.culprits);
    showLinks("job-links", links);
    showMap(heat, timeline, rankLinks);
    showFindings(findings);
    showNodes(nodes, { onMore: refresh });
    showAllIncidents(incidents, one, false);
  });
  await attempt([ask("/api/v1/recommendation")], showRecommendation); // last: it takes the longest, and changes the least
  if (state.card) byId(`${state.card}-card`).scrollIntoView();
  if (state.card) look({ card: "" }); // once: the reader goes on from there
}

const showRecommendation = (recommendation) => showChanges({ recommendation, advised: state.summary?.location.culprits.map(({ advice }) => advice) ?? [] });

async function attempt(asked, show) {
  const view = writeAddress(state);
  try {
    const answers = await Promise.all(asked);
    if (view === writeAddress(state)) show(...answers); // else the reader has chosen another view meanwhile
  } catch {
    state.lostAt ??= new Date();
  }
  showFreshness();
}

function showJobs({ jobs, job, counts }) {
  if (state.view === "fleet" && state.find) return; // these are the jobs that were looked for
  byId("job-box").hidden = !jobs.length;
  byId("jobs-more").hidden = jobs.length >= counts.total;
  setText(byId("jobs-more"), `${jobs.length} of ${counts.total}`);
  const select = byId("job");
  const options = jobs.map((line) => [line.key, jobLabel(line, jobs)]);
  if (state.job && !job) options.unshift([state.job, `${state.job} (gone)`]);
  const unchanged = options.length === select.options.length && options.every(([key, label], place) => select.options[place].value === key && select.options[place].textContent === label);
  if (!unchanged) select.replaceChildren(...options.map(([value, text]) => element("option", { value, text })));
  select.value = job ?? state.job ?? "";
  select.hidden = options.length < 2;
  setText(byId("job-name"), options.length < 2 ? (options[0]?.[1] ?? "") : "");
}

function emptyText(heat, { notes }) {
  if (heat === null) return "Several users have a job of this name: choose one of them above.";
  if (notes.some((note) => note.kind === "no_agent")) return "No ranks are known while no agent answers.";
  return heat.rows.length ? "No step has been finished yet." : "No ranks yet. They appear when a job starts under laggard run.";
}

function showFreshness() {
  const fresh = byId("fresh");
  byId("answer").classList.toggle("stale", state.lostAt !== null);
  if (state.lostAt) {
    fresh.dataset.state = "lost";
    setText(fresh, `The collector has not answered since ${state.lostAt.toLocaleTimeString()}`);
  } else if (state.summary?.age_seconds != null) {
    const old = state.summary.age_seconds + (performance.now() - state.answeredAt) / 1000;
    fresh.dataset.state = old < 3 * state.summary.interval_seconds + 10 ? "live" : "old";
    setText(fresh, old < 2 ? "Updated just now" : `Updated ${age(old)} ago`);
  } else {
    fresh.dataset.state = "waiting";
    setText(fresh, "Asking the agents");
  }
}

async function keepRefreshing() {
  if (!document.hidden) await refresh();
  setTimeout(keepRefreshing, 1000 * Math.min(5, Math.max(1, state.summary?.interval_seconds ?? 1)));
}

byId("job").addEventListener("change", (event) => look({ view: "job", node: null, job: event.target.value, zoom: null, rank: null }, state.view !== "job"));
for (const moved of ["popstate", "hashchange"]) {
  window.addEventListener(moved, () => {
    Object.assign(state, readAddress(location));
    byId("find").value = state.find;
    byId("measures").querySelector(`input[value=${state.measure}]`).checked = true;
    refresh();
  });
}
byId("find-form").addEventListener("submit", (event) => {
  event.preventDefault();
  look({ find: byId("find").value.trim() });
});
byId("find").addEventListener("search", () => byId("find").value || look({ find: "" })); // its cross
document.addEventListener("visibilitychange", () => document.hidden || refresh());
byId("find").value = state.find;
setInterval(showFreshness, 1000);
keepRefreshing();
