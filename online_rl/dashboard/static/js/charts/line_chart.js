// One line chart on uPlot: theme colours, size of its box, markers, a tooltip, and a summary for screen readers.

import uPlot from "/dashboard/vendor/uplot/uPlot.esm.js";
import { h } from "../dom.js";
import { clock, figure, tick } from "../format.js";
import { color, onThemeChange } from "../theme.js";
import { exportButtons } from "./export.js";
import { drawMarkers } from "./markers.js";
import { tooltip } from "./tooltip.js";

const FONT = "11px system-ui, -apple-system, sans-serif";

function axis(extra) {
  return {
    stroke: color("muted"), font: FONT, gap: 4,
    grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1, size: 4 }, ...extra,
  };
}

/**
 * @param series [{ label, color, width?, fill?, dots?, dashed? }]; `color` names a theme token
 * @param options { label, height, time, range: [low, high] | null, format, xLabel }
 * @returns { element, update({ x, ys, markers }), destroy() }
 */
export function lineChart(series, { label, height = 260, time = true, range = null, format = figure, xLabel = "" }) {
  const summary = h("p", { class: "visually-hidden" });
  const box = h("div", { class: "chart", role: "img", "aria-label": label });
  let plot = null, current = { x: [], ys: series.map(() => []), markers: [] }, hovered = null;
  const tools = exportButtons(label, () => current, series, { time, xLabel }, () => plot.ctx.canvas);
  const element = h("div", {}, box, summary, tools);

  const build = () => {
    plot?.destroy();
    const shade = (one) => one.fill && ((u) => {
      const gradient = u.ctx.createLinearGradient(0, u.bbox.top, 0, u.bbox.top + u.bbox.height);
      gradient.addColorStop(0, `${color(one.color)}33`);
      gradient.addColorStop(1, `${color(one.color)}00`);
      return gradient;
    });
    plot = new uPlot({
      width: Math.max(200, box.clientWidth), height, padding: [time ? 16 : 8, time ? 20 : 10, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: {
        x: { time },
        // Without a fixed range: the data's own, with a little air, and never of zero height.
        y: { range: range ? () => range : (u, low, high) => {
          if (!Number.isFinite(low)) return [0, 1];
          const air = (high - low) * 0.12 || Math.abs(high) * 0.1 || 0.5;
          return [low >= 0 && low - air < 0 ? 0 : low - air, high + air];
        } },
      },
      axes: [
        axis({ space: 70, size: 24, values: time ? timeLabels : undefined, incrs: time ? undefined : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }),
        axis({ space: height < 200 ? 24 : 36, size: (u, labels) => 14 + 6.2 * Math.max(3, ...(labels ?? []).map((label) => label.length)), values: (u, ticks) => ticks.map(tick) }),
      ],
      series: [{}, ...series.map((one) => ({
        label: one.label, stroke: color(one.color), width: one.width ?? 2, spanGaps: true,
        fill: shade(one), dash: one.dashed ? [5, 4] : undefined,
        points: one.dots ? { show: true, size: 4, width: 0, fill: color(one.color) } : { show: current.x.length < 2 },
        paths: one.dots ? () => null : undefined,
      }))],
      plugins: [drawMarkers(() => current.markers),
        tooltip(box, () => current, series, { format, title: (x) => (time ? clock(x) : `${xLabel} ${x}`), onHover: (i) => { hovered = i; } })],
    }, [current.x, ...current.ys], box);
  };

  const resize = new ResizeObserver(() => {
    if (!box.clientWidth) return;
    if (plot === null) build();
    else if (plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height });
  });
  resize.observe(box);
  const stopTheme = onThemeChange(() => plot && build());

  return {
    element,
    update(next) {
      current = { markers: [], ...next };
      const last = current.ys.map((values) => values.findLast((value) => value !== null && Number.isFinite(value)));
      summary.textContent = `${label}: ${series.map((one, i) => `${one.label} ${last[i] === undefined ? "unknown" : format(last[i])}`).join(", ")}; ${current.x.length} points.`;
      plot?.setData([current.x, ...current.ys]);
      if (plot && hovered !== null) plot.setCursor({ left: plot.cursor.left, top: plot.cursor.top });
    },
    destroy() {
      resize.disconnect();
      stopTheme();
      plot?.destroy();
    },
  };
}

function timeLabels(u, ticks, index, space, increment) {
  return ticks.map((tick) => {
    const date = new Date(tick * 1000);
    if (increment >= 86400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    const clockText = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: increment < 60 ? "2-digit" : undefined });
    return date.getHours() === 0 && date.getMinutes() === 0 && increment >= 3600
      ? date.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : clockText;
  });
}

export function chartKey(series, extra = []) {
  return h("div", { class: "chart-key" }, [...series, ...extra].map((one) => {
    const mark = h("i", { class: one.dots ? "dot" : one.tick ? "tick" : one.dashed ? "dashed" : "" });
    mark.style[one.dots || one.tick ? "backgroundColor" : "borderTopColor"] = `var(--${one.color})`;
    return h("span", {}, mark, one.label);
  }));
}
