// Adaptation: when did taste change, and how long did the policy take to follow?

import { card, empty, h, pill, render, scrollable } from "../dom.js";
import { clock, count, decimal, duration } from "../format.js";
import { param } from "../place.js";
import { cohortCards } from "./cohorts.js";
import { REWARD_NEEDS, rewardChart } from "../charts/reward_chart.js";

export const title = "Adaptation";
export const needs = [...REWARD_NEEDS, "cohorts"];

const CAUSES = { taste: ["taste", "warn"], prompt_mix: ["prompt mix", ""] };

function recovery(one) {
  if (one.recovered_at) return pill(`${count(one.recovered_after)} trajectories, ${duration(one.recovered_seconds)}`, "ok");
  return one.cause === "prompt_mix" ? "does not apply" : pill("recovering", "warn");
}

function shifts(drift) {
  const cohort = param("cohort");
  if (!drift) return empty("Loading", "Reading the drift events.");
  if (!drift.events.length) return empty("No change of taste seen", "A drop of the rewards is listed here, in all traffic or in one cohort, with its cause: users changed their mind, or different prompts came.");
  const events = drift.events.filter((one) => cohort === null || one.cohort === cohort);
  if (!events.length) return empty("None in this cohort", `No change was detected in ${cohort} alone.`);
  return scrollable("Changes", h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Detected"), h("th", { scope: "col" }, "Cause"),
      h("th", { scope: "col" }, "Cohort"), h("th", { scope: "col", class: "wide" }, "Stream"),
      h("th", { scope: "col", class: "num wide" }, "Version"), h("th", { scope: "col", class: "num" }, "Before"),
      h("th", { scope: "col", class: "num" }, "After"), h("th", { scope: "col" }, "Reaction"), h("th", { scope: "col" }, "Recovery"))),
    h("tbody", {}, events.sort((a, b) => b.detected_at - a.detected_at).map((one) => h("tr", {},
      h("td", {}, clock(one.detected_at)), h("td", {}, pill(...(CAUSES[one.cause] ?? [one.cause, ""]))),
      h("td", {}, one.cohort || "all traffic"), h("td", { class: "wide" }, one.stream), h("td", { class: "num wide" }, `v${one.version}`),
      h("td", { class: "num" }, decimal(one.before)), h("td", { class: "num" }, decimal(one.after)),
      h("td", {}, one.reaction ? `kept ${Math.round(100 * one.reaction.kept)}% of what was learned${one.reaction.ended ? "" : ", running"}` : "none"),
      h("td", {}, recovery(one)))))));
}

export function mount(root) {
  const reward = rewardChart({ height: 380 });
  const events = h("div", {}), cohorts = cohortCards();
  root.append(h("div", { class: "stack" }, reward.element, cohorts.element,
    card("Changes of taste and of prompts", { note: "recovered: the reward is back at 90% of its level before" }, events)));
  return {
    update(state) {
      reward.update(state);
      cohorts.update(state);
      render(events, state.errors.drift ? empty("Drift events cannot be read", state.errors.drift) : shifts(state.drift));
    },
    destroy: () => [reward, cohorts].forEach((one) => one.destroy()),
  };
}
