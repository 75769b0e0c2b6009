// The page to keep: shows the documents that lie in it, and asks nobody.

import { showAnswer } from "./answer.js";
import { byId } from "./dom.js";
import { heatView } from "./heat_view.js";
import { showStacks } from "./stacks.js";
import { showTimeline } from "./timeline.js";
import { showWaits } from "./waits.js";

const { summary, heat, timeline } = JSON.parse(byId("documents").textContent);

const show = heatView({ measure: heat.measure, onMeasure: (measure) => show({ ...heat, measure }, summary) });

showAnswer(summary);
showStacks(summary.location.culprits);
show(heat, summary, "The source has no steps: no heat map.");
showTimeline(byId("timeline"), timeline);
showWaits(timeline);
window.addEventListener("beforeprint", () => showTimeline(byId("timeline"), timeline));
