// Learner: is the optimisation healthy? Small charts over policy updates, each with what healthy means.

import { card, empty, h, render } from "../dom.js";
import { clock, count, figure, MISSING, words } from "../format.js";
import { lineChart } from "../charts/line_chart.js";
import { FIGURES, valueOf } from "./learner_figures.js";

export const title = "Learner";
export const needs = ["updates", "versions"];

function small(figureOf) {
  const chart = lineChart([{ label: figureOf.title.toLowerCase(), color: figureOf.color ?? "series-1", width: 1.8, fill: true }],
    { label: figureOf.title, height: 130, time: false, xLabel: figureOf.by === "version" ? "version" : "update" });
  const now = h("span", { class: "value-now" }, MISSING);
  const nothing = h("div", {});
  const element = h("section", { class: "card small", "aria-label": figureOf.title },
    h("div", { class: "card-head" }, h("h2", {}, figureOf.title), now), h("span", { class: "note" }, figureOf.note), nothing, chart.element);
  let drawn = 0;
  return {
    element,
    update({ updates, versions }) {
      const rows = figureOf.by === "version"
        ? (versions?.versions ?? []).map((one) => [one.version, valueOf(one.metrics, figureOf.keys)])
        : (updates?.updates ?? []).map((one) => [one.update, valueOf(one.metrics, figureOf.keys)]);
      const known = rows.filter(([, value]) => Number.isFinite(value));
      chart.element.hidden = !known.length;
      render(nothing, known.length ? [] : h("div", { class: "empty" }, "Not measured yet"));
      now.textContent = known.length ? figure(known[known.length - 1][1]) : MISSING;
      if (known.length === drawn) return;
      drawn = known.length;
      chart.update({ x: known.map(([x]) => x), ys: [known.map(([, y]) => y)] });
    },
    destroy: () => chart.destroy(),
  };
}

function lastUpdate(updates) {
  const last = updates?.updates.at(-1);
  if (!last) return empty("No update yet", "The first one runs when enough trajectories are in.");
  const entries = Object.entries(last.metrics).filter(([, value]) => typeof value === "number").sort(([a], [b]) => a.localeCompare(b));
  return [h("p", { class: "visually-hidden" }, `Update ${last.update}`),
    h("div", { class: "figures" }, entries.map(([name, value]) => h("div", {}, h("span", {}, words(name)), h("b", {}, figure(value)))))];
}

export function mount(root) {
  const charts = FIGURES.map(small);
  const note = h("span", { class: "note" }), all = h("div", {});
  const last = card("Last update", {}, all);
  last.querySelector(".card-head").append(note);
  root.append(h("div", { class: "stack" }, h("div", { class: "multiples" }, charts.map((one) => one.element)), last));
  return {
    update(state) {
      for (const one of charts) one.update(state);
      const newest = state.updates?.updates.at(-1);
      note.textContent = newest ? `update ${count(newest.update)}, ${newest.trajectories} trajectories, ${clock(newest.created_at)}` : "";
      render(all, state.errors.updates ? empty("Updates cannot be read", state.errors.updates) : lastUpdate(state.updates));
    },
    destroy: () => charts.forEach((one) => one.destroy()),
  };
}
