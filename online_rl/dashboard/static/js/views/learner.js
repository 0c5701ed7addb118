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
  const entries = Object.entries(last.metrics).filter(([, value]) => typeof value === "number").sort(([a], [b]) => a.localeCompare(b));
  return [h("p", { class: "visually-hidden" }, `Update ${last.update}`),
    h("div", { class: "figures" }, entries.map(([name, value]) => h("div", {}, h("span", {}, words(name)), h("b", {}, figure(value)))))];
}

export function mount(root) {
  const charts = FIGURES.map((one) => figureCard(one));
  const note = h("span", { class: "note" }), all = h("div", {});
  const last = card("Last update", {}, all);
  last.querySelector(".card-head").append(note);
  root.append(h("div", { class: "stack" }, h("div", { class: "toolbar" }, rangeControl()), h("div", { class: "multiples" }, charts.map((one) => one.element)), last));
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
