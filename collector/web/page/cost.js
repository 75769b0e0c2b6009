// What incidents cost in the last seven days: GPU-hours by cause, each with the interval in which it is.

import { byId, element, onChange, setText } from "./dom.js";
import { count } from "./format.js";

const MOST = 12;

const number = (value) => (value >= 99.95 ? Math.round(value).toLocaleString("en") : `${+value.toPrecision(3)}`);

const between = ({ least, most }) => `${number(least)} to ${number(most)}`;

// `found`: a laggard.cost/1.
export const showCost = onChange(({ incidents, total, rows, money, currency, uncounted, unseen_work: unseen, history }) => {
  byId("cost-card").hidden = !incidents && !uncounted;
  const words = [
    `${count(incidents, "incident")}: ${number(total.likely)} GPU-hours, in 19 of 20 cases ${between(total)}.`,
    money ? `That is ${number(money.likely)} ${currency} (${between(money)}).` : "",
    unseen ? `Work that ${count(unseen, "stop")} had done again is not in it: no checkpoint was seen.` : "",
    uncounted ? `${count(uncounted, "incident")} not counted.` : "",
    history,
  ];
  setText(byId("cost-explain"), words.filter(Boolean).join(" "));
  byId("cost").tBodies[0].replaceChildren(...rows.slice(0, MOST).map(rowOf));
});

function rowOf({ name, gpu_hours: hours, incidents }) {
  const cell = (label, text) => element("td", { "data-label": label, className: "short", text });
  return element("tr", {}, element("td", { className: "name", text: name }), cell("GPU-hours", number(hours.likely)), cell("Between", between(hours)), cell("Incidents", `${incidents}`));
}
