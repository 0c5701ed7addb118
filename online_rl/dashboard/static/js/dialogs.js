// Questions to the operator: the admin key, and a confirmation with a reason before anything changes.

import { h } from "./dom.js";

function open(build) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" });
    let answer = null;
    const finish = (value) => { answer = value; dialog.close(); };
    dialog.append(build(finish));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(answer); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Resolves to the key, or null when the operator gives up. */
export function askKey(problem) {
  return open((finish) => {
    const input = h("input", { id: "admin-key", type: "password", autocomplete: "off", required: true, autofocus: true });
    return h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); finish(input.value.trim()); } },
      h("h2", { id: "dialog-title" }, "Admin key"),
      h("p", {}, "This service asks for an API key with the scope “admin”. It is kept in this tab only."),
      h("label", { for: "admin-key" }, "API key"), input,
      problem && h("p", { class: "problem", role: "alert" }, problem),
      h("div", { class: "row" },
        h("button", { class: "button", type: "button", onclick: () => finish(null) }, "Not now"),
        h("button", { class: "button primary", type: "submit" }, "Continue")));
  });
}

/** Resolves to the reason given, or null when the operator cancels. */
export function confirm({ title, text, action, danger = false }) {
  return open((finish) => {
    const input = h("input", { id: "reason", type: "text", maxlength: "500", required: true, autocomplete: "off", autofocus: true });
    return h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); finish(input.value.trim() || null); } },
      h("h2", { id: "dialog-title" }, title), h("p", {}, text),
      h("label", { for: "reason" }, "Reason, kept in the record"), input,
      h("div", { class: "row" },
        h("button", { class: "button", type: "button", onclick: () => finish(null) }, "Cancel"),
        h("button", { class: `button ${danger ? "danger" : "primary"}`, type: "submit" }, action)));
  });
}

export function toast(message, kind = "") {
  const shown = h("div", { class: `toast ${kind}` }, message);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), kind === "bad" ? 10000 : 5000);
}
