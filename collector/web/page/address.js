// What the reader looks at, as the address says it, so that a link shows the same to someone else: the job in the query,
// where the server reads it too, and the rest in the fragment: #measure=own&order=host&zoom=64-128&rank=70, #view=fleet
// for all jobs and nodes, #node=NAME for one node.

import { MEASURES } from "./measures.js";

const ORDERS = ["rank", "host", "position"];
const VIEWS = ["job", "fleet"];
const MOST_FOUND = 200; // characters

// Returns {view: job, fleet or node, node: its name or null, find: what is looked for in the fleet,
// incident: its id or null, card: the one to scroll to, or empty, job, measure, order, zoom: [start, stop] or null, rank: number
// or null}. Anything unknown counts as absent.
export function readAddress(address) {
  const said = new URLSearchParams(address.hash.slice(1));
  const zoom = /^(\d{1,9})-(\d{1,9})$/.exec(said.get("zoom") ?? "");
  const node = said.get("node") || null;
  return {
    view: node ? "node" : known(VIEWS, said.get("view")),
    node,
    incident: /^\d{1,16}$/.test(said.get("incident") ?? "") ? Number(said.get("incident")) : null,
    card: known(["", "changes"], said.get("card")),
    find: (said.get("find") ?? "").slice(0, MOST_FOUND),
    job: said.get("job") || new URLSearchParams(address.search).get("job") || null,
    measure: known(MEASURES.map(({ name }) => name), said.get("measure")),
    order: known(ORDERS, said.get("order")),
    zoom: zoom && Number(zoom[1]) < Number(zoom[2]) ? [Number(zoom[1]), Number(zoom[2])] : null,
    rank: /^\d{1,9}$/.test(said.get("rank") ?? "") ? Number(said.get("rank")) : null,
  };
}

// The address of a view, relative to the page.
export function writeAddress({ view, node, find, incident, card, job, measure, order, zoom, rank }) {
  const query = job ? `?${new URLSearchParams({ job })}` : "";
  const said = new URLSearchParams();
  if (view === "node") said.set("node", node);
  if (view === "fleet") said.set("view", "fleet");
  if (view === "fleet" && find) said.set("find", find);
  if (measure !== "own") said.set("measure", measure);
  if (order !== "rank") said.set("order", order);
  if (zoom) said.set("zoom", zoom.join("-"));
  if (rank !== null) said.set("rank", rank);
  if (incident) said.set("incident", incident);
  if (card) said.set("card", card);
  return `/${query}${said.size ? `#${said}` : ""}`;
}

const known = (names, name) => (names.includes(name) ? name : names[0]);
