// Feedback: how much of what is asked comes back rated, and where the rest goes.

import { card, empty, h, render, scrollable, tile } from "../dom.js";
import { ago, clock, count, decimal, duration, percent, words } from "../format.js";

export const title = "Feedback";
export const needs = ["deadLetters"];

function funnel(status) {
  const steps = [
    ["Requests", status.requests], ["Answers stored", status.generations_stored], ["Feedback accepted", status.feedback_accepted],
    ["Trajectories released", status.trajectories_released], ["Trajectories trained", status.trajectories_trained],
  ];
  const most = Math.max(1, ...steps.map(([, n]) => n ?? 0));
  return h("div", { class: "funnel" }, steps.map(([name, n]) => {
    const fill = h("div", { class: "fill" });
    fill.style.width = `${(100 * (n ?? 0)) / most}%`;
    return h("div", { class: "funnel-row" }, h("span", {}, name), h("div", { class: "bar", "aria-hidden": "true" }, fill),
      h("span", { class: "count" }, count(n)));
  }));
}

function tiles(status) {
  const { pace, flow } = status, left = Object.values(status.answers_dropped).reduce((sum, n) => sum + n, 0);
  const released = status.trajectories_released, lost = flow.spool_dropped + flow.capture_failures;
  return [
    tile("Feedback a minute", decimal(pace.feedback_per_minute, 1), flow.last_feedback_at ? `last ${ago(flow.last_feedback_at)}` : "none yet"),
    tile("Coverage", percent(released + left ? released / (released + left) : NaN), "of the answers that are decided"),
    tile("Rated after", duration(pace.rated_after_p50_s), "median, from the last token"),
    tile("Feedback to weights", duration(flow.feedback_to_weights_s), "of the live version"),
    tile("Waiting for the log", count(flow.outbox_waiting), flow.outbox_oldest_at ? `oldest ${ago(flow.outbox_oldest_at)}` : "nothing waits"),
    tile("Lost on the way", h("span", { class: lost ? "bad-text" : "" }, count(lost)), "spool full, or refused by the log"),
  ];
}

function pairs(numbers, nothing) {
  const entries = Object.entries(numbers ?? {});
  if (!entries.length) return nothing;
  return h("table", {}, h("tbody", {}, entries.map(([name, n]) => h("tr", {},
    h("td", {}, words(name)), h("td", { class: "num" }, count(n))))));
}

function letters(dead) {
  if (!dead) return empty("Loading", "Reading the dead letters.");
  if (!dead.dead_letters.length) return empty("No dead letters", "Messages that cannot be handled are kept here with the reason.");
  return scrollable("Dead letters", h("table", {},
    h("thead", {}, h("tr", {}, ["When", "Topic", "Reason"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, dead.dead_letters.map((one) => h("tr", {},
      h("td", {}, clock(one.created_at)), h("td", {}, h("code", {}, one.topic)), h("td", { class: "reason" }, one.reason))))));
}

export function mount(root) {
  const top = h("div", { class: "tiles" }), steps = h("div", {}), signals = h("div", {}), answers = h("div", {}), dropped = h("div", {}), dead = h("div", {});
  root.append(h("div", { class: "stack" }, top, card("From request to gradient", {}, steps),
    h("div", { class: "multiples" }, card("Feedback", { note: "by what became of it" }, signals),
      card("Answers left out", { note: "by reason" }, answers), card("Trajectories dropped", { note: "by reason" }, dropped)),
    card("Dead letters", {}, dead)));
  return {
    update({ status, deadLetters, errors }) {
      if (status) {
        render(top, tiles(status));
        render(steps, funnel(status));
        render(signals, pairs(status.feedback_by_status, empty("No feedback yet", "It is counted here as soon as it is accepted.")));
        render(answers, pairs(status.answers_dropped, empty("None left out", "Every answer is released or waits for feedback.")));
        render(dropped, pairs(status.trajectories_dropped, empty("None dropped", "Every released trajectory is trained on or waits.")));
      }
      render(dead, errors.deadLetters ? empty("Dead letters cannot be read", errors.deadLetters) : letters(deadLetters));
    },
    destroy() {},
  };
}
