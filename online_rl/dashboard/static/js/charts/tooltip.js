// The values under the pointer.

import { h } from "../dom.js";

export function tooltip(box, data, series, { format, title, onHover }) {
  const tip = h("div", { class: "tooltip", hidden: true });
  return {
    hooks: {
      init: [() => box.append(tip)],
      destroy: [() => tip.remove()],
      setCursor: [(u) => {
        const { idx, left } = u.cursor, { x, ys } = data();
        if (idx === null || idx === undefined || left < 0 || x[idx] === undefined) {
          tip.hidden = true;
          onHover(null);
          return;
        }
        onHover(idx);
        tip.replaceChildren(h("div", { class: "when" }, title(x[idx])), ...series.map((one, i) =>
          h("div", {}, `${one.label} `, h("b", {}, ys[i][idx] === null ? "–" : format(ys[i][idx])))));
        tip.hidden = false;
        const offset = u.over.offsetLeft + left, room = box.clientWidth - tip.offsetWidth;
        tip.style.left = `${Math.max(0, Math.min(room, offset + 14 > room ? offset - tip.offsetWidth - 14 : offset + 14))}px`;
        tip.style.top = `${u.over.offsetTop + 8}px`;
      }],
    },
  };
}
