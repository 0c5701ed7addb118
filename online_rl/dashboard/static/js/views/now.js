// Now: is it well, what is live, is it getting better?

import { card, empty, h, pill, render, tile } from "../dom.js";
import { ago, clock, count, decimal, figure, MISSING } from "../format.js";
import { figureCard } from "../charts/figure_card.js";
import { REWARD_NEEDS, rewardChart } from "../charts/reward_chart.js";
import { linkTo } from "../place.js";
import { FIGURES } from "./learner_figures.js";

export const title = "Now";
export const needs = [...REWARD_NEEDS, "updates"];
const HEALTH = FIGURES.filter((one) => one.overview);

const SILENT_SECONDS = 20;

function tiles(status) {
  const now = status.reward_recent, before = status.reward_earlier;
  const change = Number.isFinite(now) && Number.isFinite(before) ? now - before : null;
  const dropped = Object.values(status.trajectories_dropped ?? {}).reduce((sum, n) => sum + n, 0);
  return [
    tile("Reward now", decimal(now), change === null ? "last 32 rewards"
      : h("span", { class: change > 0.05 ? "up" : change < -0.05 ? "down" : "" },
        `${change >= 0 ? "+" : "−"}${decimal(Math.abs(change))} on the 32 before`)),
    tile("Requests a minute", decimal(status.pace.answers_per_minute, 1), `${decimal(status.pace.feedback_per_minute, 1)} rated`),
    tile("Latency", status.pace.latency_p50_s === null ? MISSING : `${figure(status.pace.latency_p50_s)} s`,
      status.pace.latency_p95_s === null ? "median, last 5 minutes" : `95%: ${figure(status.pace.latency_p95_s)} s`),
    tile("Live version", status.live_version === null ? MISSING : `v${status.live_version}`,
      `${count(status.versions_published)} published`),
    tile("Trajectories trained", count(status.trajectories_trained),
      `${count(status.backlog)} waiting, ${count(dropped)} dropped`),
    tile("Failed requests", h("span", { class: status.failed_requests ? "bad-text" : "" }, count(status.failed_requests)),
      `of ${count(status.requests)}`),
  ];
}

export function partKind(part, now = Date.now() / 1000) {
  if (now - part.heartbeat_at > SILENT_SECONDS) return ["bad", "silent"];
  const state = part.state;
  if (["failed", "dead", "error", "stopped"].includes(state)) return ["bad", state];
  if (["starting", "restarting", "swapping", "stopping", "frozen", "degraded"].includes(state)) return ["warn", state];
  return ["ok", state];
}

function alarmsList(alarms) {
  if (!alarms.length) return h("p", { class: "well" }, pill("all is well", "ok"), "No part is silent, nothing waits, learning is in bounds.");
  return h("ul", { class: "list" }, alarms.map((one) => h("li", {},
    h("a", { class: "name", href: linkTo(one.about) }, one.title), pill(one.severity, one.severity === "critical" ? "bad" : "warn"),
    h("span", { class: "detail" }, one.action))));
}

function partsList(status) {
  const parts = Object.entries(status.parts ?? {});
  if (!parts.length) return empty("No part has reported", "Each part of the service reports here every few seconds.");
  return h("ul", { class: "list" }, parts.map(([name, part]) => {
    const [kind, text] = partKind(part);
    const about = kind === "bad" && text === "silent" ? `last heard ${ago(part.heartbeat_at)}` : part.detail;
    return h("li", {}, h("span", { class: "name" }, name), pill(text, kind), about && h("span", { class: "detail" }, about));
  }));
}

/** What an operator wants to hear of; that a version was replaced by the next is not among it. */
function happenings({ versions, drift }) {
  const lines = [];
  for (const one of versions?.versions ?? []) {
    if (one.live_at) lines.push({ at: one.live_at, text: `Version ${one.version} went live`, label: "live", kind: one.state === "live" ? "ok" : "" });
    if (one.state === "rejected") lines.push({ at: one.changed_at, text: `Version ${one.version} rejected`, label: "rejected", kind: "bad", detail: one.reason });
    if (one.state === "rolled_back") lines.push({ at: one.changed_at, text: `Version ${one.version} rolled back`, label: "rolled back", kind: "warn", detail: one.reason });
  }
  for (const one of drift?.events ?? []) {
    const levels = `${one.cohort ? `${one.cohort} · ` : ""}${decimal(one.before)} → ${decimal(one.after)}`;
    const taste = one.cause !== "prompt_mix";
    lines.push({ at: one.detected_at, text: taste ? "Taste changed" : "Prompt mix changed", label: "shift", kind: taste ? "warn" : "", detail: levels });
    if (one.recovered_at) lines.push({ at: one.recovered_at, text: "Recovered", label: "recovered", kind: "ok", detail: `after ${count(one.recovered_after)} trajectories` });
  }
  return lines.sort((a, b) => b.at - a.at);
}

function latest(state) {
  const lines = happenings(state).slice(0, 6);
  if (!lines.length) return empty("Nothing has happened yet", "New versions and changes of taste are listed here.");
  return h("ul", { class: "list" }, lines.map((line) => h("li", {},
    h("span", { class: "name" }, line.text), pill(line.label, line.kind),
    h("span", { class: "detail" }, [clock(line.at), line.detail].filter(Boolean).join(" · ")))));
}

export function mount(root) {
  const reward = rewardChart({ height: 390 });
  const health = HEALTH.map((one) => figureCard(one, { height: 96 }));
  const top = h("div", { class: "tiles" }), alarms = h("div", {}), parts = h("div", {}), events = h("div", {});
  root.append(h("div", { class: "stack" }, top, h("div", { class: "split" },
    h("div", { class: "stack" }, reward.element, h("div", { class: "multiples" }, health.map((one) => one.element))),
    h("div", { class: "stack" }, card("Alarms", {}, alarms), card("Parts", {}, parts), card("Latest", {}, events)))));
  return {
    update(state) {
      for (const one of [reward, ...health]) one.update(state);
      if (!state.status) return;
      render(top, tiles(state.status));
      render(alarms, alarmsList(state.alarms));
      render(parts, partsList(state.status));
      render(events, latest(state));
    },
    destroy: () => [reward, ...health].forEach((one) => one.destroy()),
  };
}
