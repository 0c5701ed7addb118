// A chart as a picture, for a report, and as numbers, for a spreadsheet.

import { h } from "../dom.js";
import { color } from "../theme.js";

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const fileName = (label, kind) => `${label.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${kind}`;
const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** Rows of the data: time as ISO 8601, what is unknown as an empty cell. */
export function toCsv({ x, ys }, series, { time, xLabel }) {
  const head = [time ? "time" : xLabel, ...series.map((one) => one.label)];
  const rows = x.map((at, i) => [time ? new Date(at * 1000).toISOString() : at, ...ys.map((values) => values[i] ?? "")]);
  return [head, ...rows].map((row) => row.map((cell) => quote(String(cell))).join(",")).join("\r\n") + "\r\n";
}

/** The canvas on the page's surface, with the chart's name above it. */
function toPicture(canvas, label) {
  const ratio = devicePixelRatio, top = 28 * ratio;
  const picture = h("canvas", { width: canvas.width, height: canvas.height + top });
  const ctx = picture.getContext("2d");
  ctx.fillStyle = color("surface");
  ctx.fillRect(0, 0, picture.width, picture.height);
  ctx.fillStyle = color("text");
  ctx.font = `600 ${13 * ratio}px system-ui, -apple-system, sans-serif`;
  ctx.fillText(label, 10 * ratio, 19 * ratio);
  ctx.drawImage(canvas, 0, top);
  return new Promise((done) => picture.toBlob(done, "image/png"));
}

export function exportButtons(label, data, series, options, canvas) {
  const png = async () => save(await toPicture(canvas(), label), fileName(label, "png"));
  const csv = () => save(new Blob([toCsv(data(), series, options)], { type: "text/csv" }), fileName(label, "csv"));
  return h("div", { class: "chart-tools" }, [["PNG", png], ["CSV", csv]].map(([text, act]) =>
    h("button", { class: "quiet", type: "button", "aria-label": `${label} as ${text}`, onclick: act }, text)));
}
