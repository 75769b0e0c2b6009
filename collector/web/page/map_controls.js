// Beside the live heat map: the order of the ranks, and the way back from a zoom.

import { byId, element, setText } from "./dom.js";

const ORDERS = [
  ["rank", "by rank"],
  ["host", "by host"],
  ["position", "by position (stage, tensor)"],
];

// `onOrder`: called with the name of an order; `onZoomOut`: with nothing. Returns the function that shows what a heat
// map is of: (heat).
export function mapControls({ onOrder, onZoomOut }) {
  const select = element("select", { id: "order" }, ...ORDERS.map(([value, text]) => element("option", { value, text })));
  const label = element("label", { for: "order", text: "Ranks " });
  const out = element("button", { type: "button", className: "button", id: "zoom-out", text: "Show all ranks" });
  const where = element("span", { id: "zoom-words", role: "status" });
  select.addEventListener("change", () => onOrder(select.value));
  out.addEventListener("click", () => {
    byId("heat-canvas").focus(); // the button goes: the keyboard stays with the map
    onZoomOut();
  });
  byId("map-controls").append(label, select, where, out);

  return (heat) => {
    const zoomed = heat !== null && heat.rows.length > 0 && heat.stop - heat.start < heat.ranks_seen;
    byId("map-controls").hidden = !heat?.rows.length;
    out.hidden = !zoomed;
    if (heat) select.value = heat.order;
    setText(where, zoomed ? `${heat.stop - heat.start} of ${heat.ranks_seen} ranks` : "");
  };
}
