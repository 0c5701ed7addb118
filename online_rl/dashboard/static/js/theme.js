// Light, dark, or what the system says. Charts are redrawn when it changes, as canvas does not follow CSS.

import { h } from "./dom.js";

const STORED = "online-rl-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function icon(dark) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("width", "16");
  svg.setAttribute("height", "16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", dark
    ? "M12 4V2m0 20v-2m8-8h2M2 12h2m13.7-5.7 1.4-1.4M4.9 19.1l1.4-1.4m0-11.4L4.9 4.9m14.2 14.2-1.4-1.4M16 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0Z"
    : "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5Z");
  path.setAttribute("fill", "none");
  path.setAttribute("stroke", "currentColor");
  path.setAttribute("stroke-width", "1.8");
  path.setAttribute("stroke-linecap", "round");
  path.setAttribute("stroke-linejoin", "round");
  svg.append(path);
  return svg;
}

export function startTheme(button) {
  const show = () => {
    const label = isDark() ? "Use the light theme" : "Use the dark theme";
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(icon(isDark()), h("span", { class: "visually-hidden" }, label));
    for (const listener of listeners) listener();
  };
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem(STORED, next);
    show();
  });
  system.addEventListener("change", show);
  show();
}
