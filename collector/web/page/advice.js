// What became of advice: how often each kind was right, and of an incident's whether it was done and what that gained.

import { byId, element, onChange, setText } from "./dom.js";
import { times } from "./format.js";

const MOST = 20;

const WORDS = {
  gained: "it was done, and gained",
  no_difference: "it was done, and made no difference",
  lost: "it was done, and made the job slower",
};

const COLUMNS = [
  ["advised", "Advised"],
  ["done", "Done"],
  ["gained", "Gained"],
  ["no_difference", "No difference"],
  ["lost", "Slower"],
  ["not_comparable", "Not comparable"],
];

let byIncident = new Map();

export const showAdvice = onChange(({ runs, kinds }) => {
  byIncident = new Map(runs.flatMap(({ advised }) => advised.filter(({ incident }) => incident !== null).map((it) => [it.incident, it])));
  byId("advice-card").hidden = !kinds.length;
  setText(byId("advice-explain"), sentenceOf(kinds));
  byId("advice").tBodies[0].replaceChildren(...kinds.slice(0, MOST).map(rowOf));
});

const sum = (kinds, name) => kinds.reduce((all, kind) => all + kind[name], 0);

function sentenceOf(kinds) {
  const measured = sum(kinds, "gained") + sum(kinds, "no_difference") + sum(kinds, "lost");
  if (!measured) return "Of none is it known yet what it gained.";
  const promised = sum(kinds, "promised");
  const kept = promised ? ` ${sum(kinds, "as_promised")} of ${promised} gained what was promised.` : "";
  const more = kinds.length > MOST ? ` The first ${MOST} of ${kinds.length} kinds; all at /api/v1/advice.` : "";
  return `Done and measured: ${measured}, of which ${sum(kinds, "gained")} gained.${kept}${more}`;
}

function rowOf(kind) {
  const cells = COLUMNS.map(([name, label]) => element("td", { text: String(kind[name]), className: "short", "data-label": label }));
  const kept = kind.promised ? `${kind.as_promised} of ${kind.promised}` : "–";
  return element("tr", {}, element("td", { text: kind.kind, className: "name" }), ...cells, element("td", { text: kept, className: "short", "data-label": "As promised" }));
}

// What is known of an incident's advice, in a sentence; empty where no later steps have told.
export function outcomeOf(id) {
  const outcome = byIncident.get(id)?.outcome;
  if (!outcome) return "";
  if (outcome.done === "no") return `It was not done: ${outcome.how}.`;
  if (outcome.done === "unknown") return `It is not known whether it was done: ${outcome.how}.`;
  if (!WORDS[outcome.result]) return `It was done (${outcome.how}). What it gained is not known: ${outcome.why}.`;
  const between = outcome.low === null ? "" : ` (${times(outcome.low)} to ${times(outcome.high)})`;
  const kept = outcome.as_promised === null ? "" : outcome.as_promised ? ", as promised" : ", not as promised";
  return `${outcome.how}: ${WORDS[outcome.result]}, ${times(outcome.ratio)} throughput${between}${kept}.`;
}
