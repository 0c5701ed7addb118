// Feedback: how much of what is asked comes back rated, and where the rest goes.

import { card, empty, h, render } from "../dom.js";
import { clock, count, words } from "../format.js";

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

function pairs(entries, nothing) {
  if (!entries.length) return nothing;
  return h("table", {}, h("tbody", {}, entries.map(([name, n]) => h("tr", {},
    h("td", {}, words(name)), h("td", { class: "num" }, count(n))))));
}

function letters(dead) {
  if (!dead) return empty("Loading", "Reading the dead letters.");
  if (!dead.dead_letters.length) return empty("No dead letters", "Messages that cannot be handled are kept here with the reason.");
  return h("div", { class: "table-wrap" }, h("table", {},
    h("thead", {}, h("tr", {}, ["When", "Topic", "Reason"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, dead.dead_letters.map((one) => h("tr", {},
      h("td", {}, clock(one.at)), h("td", {}, h("code", {}, one.topic)), h("td", { class: "reason" }, one.reason))))));
}

export function mount(root) {
  const steps = h("div", {}), dropped = h("div", {}), dead = h("div", {});
  root.append(h("div", { class: "stack" },
    h("div", { class: "split" }, card("From request to gradient", {}, steps),
      card("Dropped trajectories", { note: "by reason" }, dropped)),
    card("Dead letters", {}, dead)));
  return {
    update({ status, deadLetters, errors }) {
      if (status) {
        render(steps, funnel(status));
        render(dropped, pairs([...Object.entries(status.trajectories_dropped ?? {})], empty("None dropped", "Every released trajectory was trained on or waits.")));
      }
      render(dead, errors.deadLetters ? empty("Dead letters cannot be read", errors.deadLetters) : letters(deadLetters));
    },
    destroy() {},
  };
}
