// Trajectories: one answer from question to update. The list on the left, what was asked, answered and rated beside it.

import { getJson, ApiError } from "../api.js";
import { card, empty, h, pill, render, scrollable } from "../dom.js";
import { clock, count, decimal, words } from "../format.js";
import { choose, linkTo, param } from "../place.js";
import { COLORINGS, readTexts, tokenKey, tokenView } from "./token_view.js";

export const title = "Trajectories";
export const needs = ["trajectories"];

function fate(one) {
  if (one.erased) return pill("erased", "");
  if (one.dropped) return pill(words(one.dropped), "warn");
  return one.update === null ? pill("waiting", "accent") : pill(`update ${count(one.update)}`, "ok");
}

function list(rows, chosen) {
  if (!rows) return empty("Loading", "Reading the trajectories.");
  if (!rows.length) return empty("No trajectory yet", "An answer becomes one when its feedback is in.");
  return scrollable("Trajectories", h("table", {},
    h("thead", {}, h("tr", {}, [["Released"], ["Reward", "num"], ["Version", "num"], ["Tokens", "num wide"], ["Became"]].map(([name, kind]) =>
      h("th", { scope: "col", class: kind ?? null }, name)))),
    h("tbody", {}, rows.map((one) => h("tr", { class: one.trajectory_id === chosen ? "current" : null },
      h("td", { class: "nowrap" }, h("a", { href: linkTo("trajectories", { id: one.trajectory_id, ...order() }), "data-focus": one.trajectory_id,
        "aria-current": one.trajectory_id === chosen ? "true" : null }, clock(one.released_at))),
      h("td", { class: "num" }, decimal(one.reward)), h("td", { class: "num" }, one.oldest_version === null ? "–" : `v${one.oldest_version}`),
      h("td", { class: "num wide" }, `${count(one.action_tokens)} of ${count(one.tokens)}`), h("td", {}, fate(one)))))), "high");
}

function order() {
  return param("order") ? { order: param("order") } : {};
}

function said(one) {
  if (!one.feedback.length) return empty("No feedback on record", "The reward stands for itself.");
  return h("ul", { class: "list" }, one.feedback.map((given) => h("li", {},
    h("span", { class: "name" }, given.metric_name), h("strong", {}, decimal(given.value)),
    h("span", { class: "detail" }, [clock(given.received_at), given.comment && `“${given.comment}”`,
      ...Object.entries(given.tags ?? {}).map(([name, value]) => `${name}: ${value}`)].filter(Boolean).join(" · ")))));
}

function facts(one) {
  return h("dl", { class: "facts" }, [["Reward", decimal(one.reward)], ["Version", one.oldest_version === null ? "–" : `v${one.oldest_version}`],
    ["API key", one.api_key_id], ["Released", clock(one.released_at)], ["Became", fate(one)], ["Id", h("code", {}, one.trajectory_id)]]
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function mount(root) {
  const rows = h("div", {}), detail = h("div", { class: "stack" });
  const orders = h("div", { class: "segments", role: "group", "aria-label": "Order" }, [["Newest", null], ["Worst", "worst"]].map(([text, value]) =>
    h("button", { type: "button", onclick: () => choose({ order: value }) }, text)));
  let by = "surprise", shown = null, texts = null, open = null, gone = null;
  root.append(h("div", { class: "halves list-and-one" }, card("Trajectories", { note: "worst: of the last 1000", right: orders }, rows), detail));

  async function show(name) {
    shown = name;
    open = gone = texts = null;
    draw();
    if (name === null) return;
    try {
      const one = await getJson(`/admin/trajectories/${encodeURIComponent(name)}`);
      if (shown !== name) return;
      open = one;
      draw();
      const read = one.token_ids.length ? await readTexts(one.token_ids) : null;
      if (shown !== name) return;
      texts = read;
      draw();
    } catch (error) {
      if (!(error instanceof ApiError || error instanceof TypeError)) throw error;
      gone = error.message;
      draw();
    }
  }

  function draw() {
    if (!open) {
      render(detail, card("One trajectory", {}, gone ? empty("It cannot be read", gone)
        : shown ? empty("Loading", "Reading the trajectory.") : empty("None chosen", "Choose one to see what was asked, answered and rated.")));
      return;
    }
    const colorings = h("div", { class: "segments", role: "group", "aria-label": "Colour by" }, COLORINGS.map(([name, text]) =>
      h("button", { type: "button", "aria-pressed": String(name === by), "data-focus": `by-${name}`, onclick: () => { by = name; draw(); } }, text)));
    detail.replaceChildren(
      card("Asked and answered", { right: colorings }, open.erased ? empty("Erased", "The user had the content erased; ids and figures stay.")
        : [tokenView(open, texts, by), tokenKey(by), !texts && h("p", { class: "note" }, "Token ids: the policy gave no texts for exactly these tokens.")]),
      card("Rated", {}, said(open)), card("On record", {}, facts(open)));
  }

  draw();
  return {
    update({ trajectories, errors }) {
      for (const [i, button] of [...orders.children].entries()) button.setAttribute("aria-pressed", String((param("order") === "worst") === (i === 1)));
      render(rows, errors.trajectories ? empty("Trajectories cannot be read", errors.trajectories) : list(trajectories, param("id")));
      if (param("id") !== shown) show(param("id"));
    },
    destroy() { shown = undefined; },
  };
}
