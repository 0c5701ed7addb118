// One version: what made it, how to ask it, and what it answers beside another.

import { getJson, postJson, ApiError } from "../api.js";
import { card, empty, h, pill, render, scrollable } from "../dom.js";
import { clock, count, decimal } from "../format.js";
import { linkTo, param } from "../place.js";

function lineage(found) {
  if (!found.updates.length && !found.trajectory_count) return empty("Nothing made it here", "The base model, or a version of before this record.");
  const users = found.users.filter((one) => one.user_id !== null).length;
  return [h("p", { class: "note" }, `${count(found.updates.length)} update${found.updates.length === 1 ? "" : "s"}, ${count(found.trajectory_count)} trajectories, `
      + `${users ? `${count(users)} users` : "users not named"}; since ${found.parent === null ? "the base model" : `v${found.parent}`}`),
    scrollable("Trajectories of the version", h("table", {},
      h("thead", {}, h("tr", {}, [["Trajectory"], ["Reward", "num"], ["Sampled by", "num"], ["Feedback", "num"]].map(([name, kind]) => h("th", { scope: "col", class: kind ?? null }, name)))),
      h("tbody", {}, found.trajectories.slice(0, 20).map((one) => h("tr", {},
        h("td", {}, h("a", { href: linkTo("trajectories", { id: one.trajectory_id }) }, h("code", {}, one.trajectory_id))),
        h("td", { class: "num" }, decimal(one.reward)), h("td", { class: "num" }, one.oldest_version === null ? "–" : `v${one.oldest_version}`),
        h("td", { class: "num" }, count(one.feedback.length)))))), "low")];
}

async function ask(version, prompt) {
  try {
    const found = await postJson("/v1/chat/completions", { model: `policy@v${version}`, messages: [{ role: "user", content: prompt }], max_tokens: 200, seed: 1 },
      { "x-train": "false" });
    return found.choices[0].message.content;
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof TypeError)) throw error;
    return error;
  }
}

function comparison(version, other) {
  const prompt = h("textarea", { id: "compare-prompt", rows: "2", required: true, placeholder: "What do you think about rivers?" });
  const against = h("input", { id: "compare-with", type: "number", min: "0", max: "999999999", required: true, value: String(other) });
  const answers = h("div", { class: "stack", "aria-live": "polite" });
  const submit = async (event) => {
    event.preventDefault();
    const asked = [version, Number(against.value)];
    answers.replaceChildren(...asked.map((one) => card(`v${one}`, {}, h("p", { class: "note" }, "Asking…"))));
    const said = await Promise.all(asked.map((one) => ask(one, prompt.value)));
    answers.replaceChildren(...asked.map((one, i) => card(`v${one}`, {}, said[i] instanceof Error
      ? empty("No answer", said[i].message) : h("p", { class: "answer" }, said[i]))));
  };
  return [h("form", { class: "compare", onsubmit: submit },
    h("label", { for: "compare-prompt" }, "Prompt"), prompt,
    h("div", { class: "row" }, h("label", { for: "compare-with" }, "with version"), against,
      h("button", { class: "button primary", type: "submit" }, "Ask both"))), answers];
}

export function versionDetail() {
  const element = h("div", { class: "stack" });
  let shown = null;
  async function show(version, versions) {
    shown = version;
    if (version === null) return render(element);
    const one = versions.find((other) => String(other.version) === version);
    const made = h("div", {}, empty("Loading", "Reading what made it."));
    const other = one?.parent ?? 0;
    element.replaceChildren(h("div", { class: "halves" }, card(`Version ${version}`, { note: one ? `${one.state.replace("_", " ")}${one.live_at ? `, went live ${clock(one.live_at)}` : ""}` : "not on record",
      right: h("a", { class: "button small", href: linkTo("versions") }, "Close") },
      h("p", {}, "Pin it with the model name ", h("code", { class: "pin" }, `policy@v${version}`), " where the replica holds several versions (swap.mode = lora)."),
      made), card("Compare", { note: `v${version} beside another, on one prompt; not trained on` }, comparison(Number(version), other))));
    try {
      const found = await getJson(`/admin/versions/${encodeURIComponent(version)}/lineage?limit=200`);
      if (shown === version) render(made, lineage(found));
    } catch (error) {
      if (!(error instanceof ApiError || error instanceof TypeError)) throw error;
      if (shown === version) render(made, empty("Its lineage cannot be read", error.message));
    }
  }
  return {
    element,
    update({ versions }) {
      if (versions && param("version") !== shown) show(param("version"), versions.versions);
    },
    destroy() { shown = undefined; },
  };
}
