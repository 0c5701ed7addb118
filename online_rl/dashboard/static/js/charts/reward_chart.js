// Reward over time with its moving average, versions and changes of taste: the picture the service exists for.

import { card, empty, h, render } from "../dom.js";
import { decimal } from "../format.js";
import { shownSeconds } from "../place.js";
import { chartKey, lineChart } from "./line_chart.js";
import { rangeControl } from "./ranges.js";

const SERIES = [
  { label: "rewards", color: "series-2", dots: true },
  { label: "average of 32", color: "series-1", width: 2.2, fill: true },
];

export function rewardMarkers({ versions, drift }) {
  const live = (versions?.versions ?? []).filter((one) => one.live_at)
    .map((one) => ({ at: one.live_at, text: `v${one.version}`, kind: "version" }));
  const shifts = (drift?.events ?? []).map((one) => ({ at: one.detected_at, text: one.cause === "prompt_mix" ? "prompt mix changed" : "taste changed", kind: "shift" }));
  const recoveries = (drift?.events ?? []).filter((one) => one.recovered_at)
    .map((one) => ({ at: one.recovered_at, text: "recovered", kind: "recovery" }));
  return [...live, ...shifts, ...recoveries].sort((a, b) => a.at - b.at);
}

export function rewardChart({ height = 300, title = "Reward over time" } = {}) {
  const chart = lineChart(SERIES, { label: title, height, format: (value) => decimal(value, 2) });
  const nothing = h("div", {});
  const key = chartKey(SERIES, [
    { label: "version went live", color: "accent", tick: true }, { label: "taste changed", color: "shift", dashed: true },
    { label: "recovered", color: "ok", dashed: true },
  ]);
  const note = h("span", { class: "note" });
  const element = card(title, { right: rangeControl() }, note, nothing, chart.element, key);
  let drawn = null, drawnMarkers = "";
  return {
    element,
    update(state) {
      const { rewards, errors } = state;
      const some = Boolean(rewards?.at.length);
      chart.element.hidden = key.hidden = !some;
      if (!some) {
        render(nothing, errors.rewards ? empty("Rewards cannot be read", errors.rewards)
          : rewards ? empty("No rewards yet", shownSeconds() === null
            ? "Post feedback on an answer to POST /v1/feedback; it shows here once its trajectory is released."
            : "Nothing was rated in this time. Choose a longer one.")
            : empty("Loading", "Reading the rewards."));
        drawn = null;
        return;
      }
      render(nothing);
      const markers = rewardMarkers(state), same = JSON.stringify(markers);
      if (drawn === rewards && same === drawnMarkers) return;
      drawn = rewards;
      drawnMarkers = same;
      chart.update({ x: rewards.at, ys: [rewards.mean, rewards.average], markers });
    },
    destroy: () => chart.destroy(),
  };
}

export const REWARD_NEEDS = ["rewards", "versions", "drift"];
