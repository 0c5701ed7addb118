// Elements are built by calls, never from strings, so text from the service cannot become markup.

/** An element: `h("td", { class: "num" }, "12")`. Attributes whose value is null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces the children only when what they say has changed, so that focus and selection survive live updates. */
export function render(element, ...children) {
  const next = document.createElement("div");
  next.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  if (element.innerHTML === next.innerHTML) return;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  element.replaceChildren(...next.childNodes);
  if (focused) element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}

/** A table that may be wider than its card; with the keyboard it can be scrolled as well. */
export function scrollable(label, table, kind = "") {
  return h("div", { class: `table-wrap ${kind}`.trim(), role: "region", "aria-label": label, tabindex: "0" }, table);
}

export function empty(title, hint) {
  return h("div", { class: "empty" }, h("strong", {}, title), hint);
}

export function pill(text, kind = "", title = null) {
  return h("span", { class: `pill ${kind}`, title }, text);
}

/** A figure with its name above and a hint below. */
export function tile(label, value, hint = null, attributes = {}) {
  return h("div", { class: "card tile", role: "group", "aria-label": label, ...attributes },
    h("span", { class: "label" }, label), h("span", { class: "value" }, value), h("span", { class: "hint" }, hint));
}

export function card(title, { note = null, right = null, ...attributes } = {}, ...children) {
  return h("section", { ...attributes, class: `card ${attributes.class ?? ""}`.trim(), "aria-label": title },
    h("div", { class: "card-head" }, h("h2", {}, title), note && h("span", { class: "note" }, note),
      right && h("div", { class: "right" }, right)),
    ...children);
}
