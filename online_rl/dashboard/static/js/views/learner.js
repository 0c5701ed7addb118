// Learner: is the optimisation healthy? Small charts over policy updates, each with what healthy means.

import { card, empty, h, render } from "../dom.js";
import { clock, count, figure, words } from "../format.js";
import { figureCard } from "../charts/figure_card.js";
import { rangeControl } from "../charts/ranges.js";
import { FIGURES } from "./learner_figures.js";

export const title = "Learner";
export const needs = ["updates", "versions"];

function lastUpdate(updates) {
  const last = updates?.updates.at(-1);
  if (!last) return empty("No update yet", "The first one runs when enough trajectories are in.");
  const entries = Object.entries(last.metrics).filter(([, value]) => typeof value === "number").filter(([name]) => !name.startsWith("ratio/")).sort(([a], [b]) => a.localeCompare(b));
  return [h("p", { class: "visually-hidden" }, `Update ${last.update}`),
    h("div", { class: "figures" }, entries.map(([name, value]) => h("div", {}, h("span", {}, words(name)), h("b", {}, figure(value)))))];
}

/** Share of the last update's tokens by importance ratio; the learner reports it as `ratio/LOW_HIGH`. */
function histogram(updates) {
  const last = updates?.updates.findLast((one) => Object.keys(one.metrics).some((name) => name.startsWith("ratio/")));
  if (!last) return empty("Not measured yet", "It is reported with each update whose trajectories carry behavior log-probabilities.");
  const bins = Object.entries(last.metrics).filter(([name]) => name.startsWith("ratio/"))
    .map(([name, share]) => [...name.slice(6).split("_").map((edge) => (edge === "inf" ? Infinity : Number(edge))), share]).sort((a, b) => a[0] - b[0]);
  const most = Math.max(...bins.map(([, , share]) => share), 1e-9);
  return h("div", { class: "funnel" }, bins.map(([low, high, share]) => {
    const fill = h("div", { class: "fill" });
    fill.style.width = `${(100 * share) / most}%`;
    return h("div", { class: "funnel-row" }, h("span", {}, high === Infinity ? `${low} and more` : `${low} to ${high}`),
      h("div", { class: "bar", "aria-hidden": "true" }, fill), h("span", { class: "count" }, `${(100 * share).toFixed(1)}%`));
  }));
}

export function mount(root) {
  const charts = FIGURES.map((one) => figureCard(one));
  const note = h("span", { class: "note" }), all = h("div", {}), ratios = h("div", {});
  const last = card("Last update", {}, all);
  last.querySelector(".card-head").append(note);
  root.append(h("div", { class: "stack" }, h("div", { class: "toolbar" }, rangeControl()), h("div", { class: "multiples" }, charts.map((one) => one.element)),
    card("Importance ratios", { note: "policy to what sampled, share of the last update's tokens; close to 1 is healthy" }, ratios), last));
  return {
    update(state) {
      for (const one of charts) one.update(state);
      const newest = state.updates?.updates.at(-1);
      note.textContent = newest ? `update ${count(newest.update)}, ${newest.trajectories} trajectories, ${clock(newest.created_at)}` : "";
      render(ratios, histogram(state.updates));
      render(all, state.errors.updates ? empty("Updates cannot be read", state.errors.updates) : lastUpdate(state.updates));
    },
    destroy: () => charts.forEach((one) => one.destroy()),
  };
}
