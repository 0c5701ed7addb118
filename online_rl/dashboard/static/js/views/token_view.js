// The tokens of one trajectory, coloured by what is asked: how surprising each was, or which version sampled it.

import { postJson, ApiError } from "../api.js";
import { h } from "../dom.js";
import { decimal } from "../format.js";

const DEEPEST = 5;  // nats at which the colour is full
const SHADES = 6;
export const COLORINGS = [["surprise", "Surprise"], ["version", "Version"]];

/** Text of each token, or null where the policy cannot say: texts are its tokenizer's, ids are ours. */
export async function readTexts(ids) {
  try {
    const { prompt } = await postJson("/detokenize", { tokens: ids });
    const { tokens, token_strs: texts } = await postJson("/tokenize", { prompt, add_special_tokens: false, return_token_strs: true });
    // A text may be cut into other tokens than those that were sampled; then their borders are not known.
    const same = texts && tokens.length === ids.length && tokens.every((id, i) => id === ids[i]);
    return same ? texts.map((text) => text.replaceAll("Ġ", " ").replaceAll("Ċ", "\n").replaceAll("▁", " ")) : null;
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof TypeError)) throw error;
    return null;
  }
}

function shadeOf(trajectory, place, by) {
  if (!trajectory.action_mask[place]) return "asked";
  if (by === "version") {
    const version = trajectory.versions[place];
    return version === null ? "sampled" : `version-${version % 3}`;
  }
  const surprise = -(trajectory.logprobs[place] ?? 0);
  return `shade-${Math.min(SHADES, Math.round((SHADES * surprise) / DEEPEST))}`;
}

function tellOf(trajectory, place) {
  if (!trajectory.action_mask[place]) return `token ${trajectory.token_ids[place]}, not sampled`;
  const version = trajectory.versions[place], logprob = trajectory.logprobs[place];
  return `token ${trajectory.token_ids[place]}, log p ${logprob === null ? "unknown" : decimal(logprob)}, ${version === null ? "version unknown" : `v${version}`}`;
}

export function tokenView(trajectory, texts, by) {
  return h("div", { class: "tokens", role: "group", "aria-label": "Tokens", tabindex: "0" }, trajectory.token_ids.map((id, place) =>
    h("span", { class: `token ${shadeOf(trajectory, place, by)}`, title: tellOf(trajectory, place) }, texts ? texts[place] : `${id} `)));
}

export function tokenKey(by) {
  const marks = by === "version" ? [["version-0", "one colour a version"], ["asked", "not sampled"]]
    : [["shade-0", "expected"], ["shade-3", "log p −2.5"], [`shade-${SHADES}`, `log p −${DEEPEST} or less`], ["asked", "not sampled"]];
  return h("div", { class: "chart-key" }, marks.map(([kind, text]) => h("span", {}, h("b", { class: `token ${kind}`, "aria-hidden": "true" }, "ab"), text)));
}
