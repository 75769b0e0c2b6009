// Links to a site's Prometheus and Grafana, where its settings name them.

import { byId, element } from "./dom.js";

// `id`: of the element that gets them; `found`: a laggard.links/1, or null.
export function showLinks(id, found) {
  const links = (found?.links ?? []).filter(({ href }) => /^https?:\/\//.test(href));
  const box = byId(id);
  const now = Array.from(box.children, (link) => link.href);
  if (now.length === links.length && links.every(({ href }, place) => new URL(href).href === now[place])) return;
  box.replaceChildren(...links.map(({ text, href }) => element("a", { href, text, rel: "noreferrer" })));
}
