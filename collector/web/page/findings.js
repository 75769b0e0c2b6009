// The findings on the nodes, worst first, one entry for each code: who has it, how to fix it, and its page.

import { copyBox } from "./copy.js";
import { byId, element, onChange, setText } from "./dom.js";
import { count } from "./format.js";

const MOST_CODES = 20;
const MOST_PLACES = 8;
const TONES = { critical: "fail", warning: "unknown" };

// `document`: a laggard.node_findings/1.
export const showFindings = onChange(({ findings, total }) => {
  const groups = new Map();
  for (const each of findings) groups.set(each.finding.code, [...(groups.get(each.finding.code) ?? []), each]);
  byId("findings-card").hidden = !findings.length;
  const cut = total > findings.length ? ` The worst ${findings.length} of ${total} are shown; all at /api/v1/findings.` : "";
  const codes = groups.size > MOST_CODES ? ` The first ${MOST_CODES} of ${groups.size} codes are shown; all at /api/v1/findings.` : "";
  setText(byId("findings-explain"), `${count(total, "finding")}.${cut || codes}`);
  byId("findings").replaceChildren(...[...groups.values()].slice(0, MOST_CODES).map(articleOf));
});

function articleOf(group) {
  const [{ finding: first }] = group;
  const link = element("a", { href: `/findings/${encodeURIComponent(first.code)}`, text: first.code });
  const severity = element("span", { className: "state", text: first.severity, "data-tone": TONES[first.severity] ?? "" });
  const places = group.slice(0, MOST_PLACES).map(({ node, finding }) => [node, finding.device].filter(Boolean).join(" "));
  const others = group.length > MOST_PLACES ? ` and ${group.length - MOST_PLACES} more` : "";
  const where = element("p", {}, element("b", { text: places.join(", ") + others }));
  const boxes = first.fix.commands.length ? [copyBox(first.fix.commands.join("\n"), `the commands for ${first.code}`)] : [];
  const todo = first.action ? `${first.fix.text} [${first.action}]` : first.fix.text;
  const text = [first.summary, todo].filter(Boolean).map((line) => element("p", { text: line }));
  return element("article", { className: "finding" }, element("h3", {}, link, severity), where, ...text, ...boxes);
}
