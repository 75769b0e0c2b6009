// What to change: the recommendation for the job, each item as a diff of its setting, with what applies and reverts it.

import { copyBox } from "./copy.js";
import { byId, element, onChange, setText } from "./dom.js";
import { capital, times } from "./format.js";

const MOST = 12;

const NOTHING = { items: [], blocked_by: [], notes: [], files: {} };

// `advised`: what the answer says to do; what is no more than that is not said again.
export const showChanges = onChange(({ recommendation, advised }) => {
  const { items: all, blocked_by: blocked, notes, files } = recommendation ?? NOTHING;
  const items = all.filter(({ apply }) => !advised.includes(apply));
  byId("changes-card").hidden = !items.length && !blocked.length;
  const more = items.length > MOST ? `The first ${MOST} of ${items.length}; all at /api/v1/recommendation. ` : "";
  setText(byId("changes-explain"), more + notes.join(" "));
  byId("changes").replaceChildren(...items.slice(0, MOST).map(articleOf), ...Object.entries(files).map(fileOf));
});

function articleOf(item) {
  const title = element("h3", { text: `${item.target}: ${item.key}` });
  const gain = gainOf(item);
  if (gain) title.append(element("span", { className: "gain", text: gain }));
  const reasons = [item.reason, item.risk && `Risk: ${item.risk}`].filter(Boolean).map((text) => element("p", { text }));
  const boxes = [settable(item) ? diffOf(item) : element("p", { text: item.current === null ? "" : `Now: ${plain(item.current)}` })];
  boxes.push(...wordsOf(item).map((text) => element("p", { text })));
  if (item.commands.length) boxes.push(copyBox(item.commands.join("\n"), `what applies ${item.key}`));
  if (item.revert) boxes.push(element("p", {}, element("b", { text: "To go back: " }), item.revert));
  return element("article", { className: "finding" }, title, ...reasons, ...boxes);
}

// What a person does: nothing of it can be pasted anywhere.
function wordsOf({ apply, commands }) {
  const words = apply.split("\n").filter((line) => line && !commands.includes(line));
  return words.map(capital);
}

function gainOf({ gain: { ratio, low, high, basis }, repairs }) {
  const range = low !== null && high !== null ? ` (${times(low)} to ${times(high)})` : "";
  if (ratio === null) return `${repairs ? "repair" : "gain not known"}${range && `, elsewhere${range}`}`;
  if (low !== 1 || high === null) return `${times(ratio)} throughput${range}, ${basis}`;
  if (ratio >= high) return `${ratio > 1 ? "at most " : ""}${times(ratio)} throughput, ${basis}`;
  return `${times(ratio)} throughput (from no gain to ${times(high)}), ${basis}`;
}

// What is repaired by hand has a state, and no value to set.
const settable = ({ target, recommended }) => recommended !== null || target === "nccl_env" || target === "deepspeed";

function diffOf({ key, current, recommended }) {
  const lines = [
    ["less", "−", current],
    ["more-line", "+", recommended],
  ].filter(([, , value]) => value !== null);
  if (!lines.length) return "";
  const shown = lines.map(([className, sign, value]) => element("span", { className, text: `${sign} ${key}=${plain(value)}` }));
  return element("div", { className: "diff", role: "group", "aria-label": `${key}: from and to` }, ...shown);
}

const plain = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));

function fileOf([name, text]) {
  return element("details", {}, element("summary", { text: name }), copyBox(text, name));
}
