// One figure of the learner: its name, its value now, what healthy means, and a small chart of how it went.

import { h, render } from "../dom.js";
import { figure, MISSING } from "../format.js";
import { shownSeconds } from "../place.js";
import { lineChart } from "./line_chart.js";
import { withinRange } from "./ranges.js";

/** @param figureOf one of FIGURES in views/learner_figures.js */
export function figureCard(figureOf, { height = 130 } = {}) {
  const chart = lineChart([{ label: figureOf.title.toLowerCase(), color: figureOf.color ?? "series-1", width: 1.8, fill: true }],
    { label: figureOf.title, height, time: false, xLabel: figureOf.by === "version" ? "version" : "update" });
  const now = h("span", { class: "value-now" }, MISSING);
  const nothing = h("div", {});
  const element = h("section", { class: "card small", "aria-label": figureOf.title },
    h("div", { class: "card-head" }, h("h2", {}, figureOf.title), now), h("span", { class: "note" }, figureOf.note), nothing, chart.element);
  let drawn = "";
  return {
    element,
    update({ updates, versions }) {
      const rows = figureOf.by === "version"
        ? withinRange(versions?.versions ?? [], (one) => one.created_at).map((one) => [one.version, one.metrics[figureOf.key]])
        : withinRange(updates?.updates ?? [], (one) => one.created_at).map((one) => [one.update, one.metrics[figureOf.key]]);
      const known = rows.filter(([, value]) => Number.isFinite(value));
      chart.element.hidden = !known.length;
      render(nothing, known.length ? [] : h("div", { class: "empty" }, shownSeconds() === null ? "Not measured yet" : "Not measured in this time"));
      now.textContent = known.length ? figure(known[known.length - 1][1]) : MISSING;
      const same = `${known[0]?.[0]} ${known.length}`;
      if (same === drawn) return;
      drawn = same;
      chart.update({ x: known.map(([x]) => x), ys: [known.map(([, y]) => y)] });
    },
    destroy: () => chart.destroy(),
  };
}
