// Vertical markers: a new version is a quiet tick, a change of taste a dashed line over the whole height.

import { color } from "../theme.js";

const GAP = { quiet: 22, strong: 6 };  // pixels that must stay free between two labels

/** A uPlot plugin; `markers()` gives [{ at, text, kind: "version" | "shift" | "recovery" }], sorted by `at`. */
export function drawMarkers(markers) {
  return {
    hooks: {
      draw: [(u) => {
        const { ctx } = u, { left, top, width, height } = u.bbox, ratio = devicePixelRatio;
        const free = { quiet: -Infinity, strong: -Infinity };  // where the last label of each row ended
        ctx.save();
        ctx.font = `${10.5 * ratio}px system-ui, -apple-system, sans-serif`;
        for (const marker of markers()) {
          const x = Math.round(u.valToPos(marker.at, "x", true));
          if (x < left || x > left + width) continue;
          const strong = marker.kind !== "version", row = strong ? "strong" : "quiet";
          const shade = color(marker.kind === "shift" ? "shift" : marker.kind === "recovery" ? "ok" : "accent");
          ctx.strokeStyle = ctx.fillStyle = shade;
          ctx.globalAlpha = strong ? 0.9 : 0.45;
          ctx.lineWidth = ratio;
          ctx.setLineDash(strong ? [4 * ratio, 3 * ratio] : []);
          ctx.beginPath();
          ctx.moveTo(x + 0.5, strong ? top : top + height - 8 * ratio);
          ctx.lineTo(x + 0.5, top + height);
          ctx.stroke();
          const size = ctx.measureText(marker.text).width, half = size / 2;
          const at = Math.min(Math.max(x, left + half), left + width - half);
          if (at - half > free[row] + GAP[row] * ratio) {
            ctx.globalAlpha = 1;
            ctx.textAlign = "center";
            ctx.textBaseline = "bottom";
            ctx.fillText(marker.text, at, strong ? top - 3 * ratio : top + height - 10 * ratio);
            free[row] = at + half;
          }
        }
        ctx.restore();
      }],
    },
  };
}
