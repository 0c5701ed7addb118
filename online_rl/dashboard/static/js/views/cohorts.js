// The newest rewards by cohort, and one of them drawn.

import { card, empty, h, render, scrollable } from "../dom.js";
import { count, decimal } from "../format.js";
import { lineChart } from "../charts/line_chart.js";
import { choose, linkTo, param } from "../place.js";

const SERIES = [{ label: "average of 32", color: "series-3", width: 2.2, fill: true }];

function table(cohorts, chosen) {
  if (!cohorts) return empty("Loading", "Reading the cohorts.");
  if (!cohorts.length) return empty("No cohort yet", "Eight rewards of one API key, tag or length of prompt make one.");
  return scrollable("Cohorts", h("table", {},
    h("thead", {}, h("tr", {}, [["Cohort"], ["Rewards", "num"], ["Mean", "num"], ["Last 32", "num"]].map(([name, kind]) =>
      h("th", { scope: "col", class: kind ?? null }, name)))),
    h("tbody", {}, cohorts.map((one) => h("tr", { class: one.name === chosen ? "current" : null },
      h("td", {}, h("a", { href: linkTo("adaptation", { cohort: one.name }), "data-focus": `cohort-${one.name}` }, one.name)),
      h("td", { class: "num" }, count(one.rewards)), h("td", { class: "num" }, decimal(one.mean)), h("td", { class: "num" }, decimal(one.recent)))))));
}

export function cohortCards() {
  const rows = h("div", {}), nothing = h("div", {}), name = h("span", { class: "note" });
  const chart = lineChart(SERIES, { label: "Reward of the cohort", height: 260, format: (value) => decimal(value, 2) });
  const all = h("button", { class: "button small", type: "button", hidden: true, onclick: () => choose({ cohort: null }) }, "All traffic");
  const drawn = card("Reward of a cohort", { right: all }, name, nothing, chart.element);
  return {
    element: h("div", { class: "halves" }, card("Cohorts", { note: "of the last 1000 trajectories" }, rows), drawn),
    update({ cohorts, errors }) {
      const chosen = param("cohort"), one = cohorts?.find((other) => other.name === chosen);
      render(rows, errors.cohorts ? empty("Cohorts cannot be read", errors.cohorts) : table(cohorts, chosen));
      all.hidden = chosen === null;
      name.textContent = chosen ?? "";
      chart.element.hidden = !one;
      render(nothing, one ? [] : chosen ? empty("Not among the newest", `No eight rewards of ${chosen} in the last 1000.`)
        : empty("None chosen", "Choose a cohort to see its reward alone; the shifts below are then of that cohort."));
      if (one) chart.update({ x: one.at, ys: [one.average] });
    },
    destroy: () => chart.destroy(),
  };
}
