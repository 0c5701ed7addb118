// Versions: every set of weights there was, its state and why, and the operator's controls.

import { card, empty, h, pill, render, scrollable } from "../dom.js";
import { clock, count, decimal, figure, MISSING } from "../format.js";
import { linkTo } from "../place.js";
import { get } from "../store.js";
import { versionDetail } from "./version_detail.js";
import { freeze, promote, resume, rollBack } from "../actions.js";

export const title = "Versions";
export const needs = ["versions"];

const FIRST = 30;  // rows shown until more are asked for
const KINDS = { live: "ok", canary: "accent", candidate: "accent", retired: "", rejected: "bad", rolled_back: "warn" };
const COLUMNS = [["Version"], ["State"], ["Went live", "wide"], ["Parent", "num wide"], ["Rewards", "num wide"], ["Reward", "num"],
  ["KL to base", "num wide"], ["Mismatch", "num wide"], ["Reason", "wide"], ["", "actions"]];

function row(one) {
  return h("tr", { class: one.state === "live" ? "current" : null },
    h("td", {}, h("a", { href: linkTo("versions", { version: one.version }), "data-focus": `version-${one.version}` }, h("strong", {}, `v${one.version}`)), one.version === 0 ? " base" : ""),
    h("td", {}, pill(one.state.replace("_", " "), KINDS[one.state] ?? ""),
      ["rejected", "rolled_back"].includes(one.state) && one.reason && h("div", { class: "narrow reason" }, one.reason)),
    h("td", { class: "nowrap wide" }, one.live_at ? clock(one.live_at) : MISSING),
    h("td", { class: "num wide" }, one.parent === null ? MISSING : `v${one.parent}`),
    h("td", { class: "num wide" }, count(one.rewards)),
    h("td", { class: "num" }, decimal(one.reward_mean)),
    h("td", { class: "num wide" }, figure(one.metrics.kl_to_base)),
    h("td", { class: "num wide" }, figure(one.metrics.mismatch_mean)),
    h("td", { class: "reason wide" }, one.reason ?? ""),
    h("td", { class: "actions" }, one.can_promote && h("button", {
      class: "button small", type: "button", "data-focus": `promote-${one.version}`,
      "aria-label": `Promote version ${one.version}`, onclick: () => promote(one.version),
    }, "Promote")));
}

function table(versions, all, showAll) {
  if (!versions) return empty("Loading", "Reading the versions.");
  if (!versions.versions.length) return empty("No version yet", "The base model is registered as version 0 when the service starts.");
  const rows = [...versions.versions].reverse();
  const list = scrollable("Versions", h("table", {},
    h("thead", {}, h("tr", {}, COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: kind ?? null },
      name || h("span", { class: "visually-hidden" }, "Actions"))))),
    h("tbody", {}, rows.slice(0, all ? rows.length : FIRST).map(row))));
  return [list, !all && rows.length > FIRST && h("p", { class: "more" }, h("button", { class: "button small", type: "button", onclick: showAll },
    `Show all ${count(rows.length)}`))];
}

function controls({ status, versions }) {
  const live = status?.live_version;
  return [
    h("button", { class: "button danger", type: "button", "data-focus": "rollback", disabled: !versions?.can_roll_back,
      onclick: () => rollBack(live) }, "Roll back"),
    status?.learning_frozen
      ? h("button", { class: "button primary", type: "button", "data-focus": "resume", onclick: resume }, "Resume learning")
      : h("button", { class: "button", type: "button", "data-focus": "freeze", disabled: !status, onclick: freeze }, "Freeze learning"),
  ];
}

export function mount(root) {
  const list = h("div", {}), buttons = h("div", { class: "right" });
  const box = card("Policy versions", { right: buttons }, list);
  const detail = versionDetail();
  root.append(h("div", { class: "stack" }, detail.element, box));
  let all = false;
  const showAll = () => {
    all = true;
    render(list, table(get().versions, all, showAll));
  };
  return {
    update(state) {
      render(buttons, controls(state));
      detail.update(state);
      render(list, state.errors.versions ? empty("Versions cannot be read", state.errors.versions) : table(state.versions, all, showAll));
    },
    destroy: () => detail.destroy(),
  };
}
