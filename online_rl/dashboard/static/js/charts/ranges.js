// The time shown, one choice for every chart of the page.

import { h } from "../dom.js";
import { choose, shownSeconds } from "../place.js";

const RANGES = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["All", null]];

export function rangeControl() {
  const show = () => {
    for (const [i, button] of [...group.children].entries()) button.setAttribute("aria-pressed", String(RANGES[i][1] === shownSeconds()));
  };
  const group = h("div", { class: "segments", role: "group", "aria-label": "Time shown" }, RANGES.map(([text, seconds]) =>
    h("button", { type: "button", onclick: () => { choose({ range: seconds }); show(); } }, text)));
  show();
  return group;
}

/** Rows of the time shown; `at` gives a row's Unix seconds. */
export function withinRange(rows, at) {
  const seconds = shownSeconds();
  if (seconds === null) return rows;
  const since = Date.now() / 1000 - seconds;
  return rows.filter((row) => at(row) >= since);
}
