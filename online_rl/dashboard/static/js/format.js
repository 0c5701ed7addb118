// Numbers and times as the page shows them. A figure that is not there yet is an en dash, never a zero.

export const MISSING = "–";

export function count(value) {
  return Number.isFinite(value) ? value.toLocaleString("en-GB") : MISSING;
}

export function decimal(value, digits = 2) {
  return Number.isFinite(value) ? value.toFixed(digits) : MISSING;
}

export function percent(share) {
  return Number.isFinite(share) ? `${Math.round(100 * share)}%` : MISSING;
}

/** A tick of an axis: as short as it can be said. */
export function tick(value) {
  return Math.abs(value) >= 10000 ? `${value / 1000}k` : String(Number(value.toPrecision(6)));
}

/** Three significant digits, without exponents where people read them more easily. */
export function figure(value) {
  if (!Number.isFinite(value)) return MISSING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en-GB");
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return size >= 0.0005 ? value.toFixed(size >= 0.01 ? 3 : 4) : value.toExponential(1);
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return MISSING;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function ago(at, now = Date.now() / 1000) {
  if (!Number.isFinite(at)) return MISSING;
  const s = now - at;
  return s < 2 ? "just now" : s < 60 ? `${Math.round(s)} s ago` : `${duration(Math.round(s / 60) * 60)} ago`;
}

export function clock(at) {
  if (!Number.isFinite(at)) return MISSING;
  const date = new Date(at * 1000);
  const sameDay = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return sameDay ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

export function words(name) {
  return name.replaceAll("_", " ");
}
