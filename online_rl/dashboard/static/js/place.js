// Where the page is: `#adaptation?range=3600&cohort=key%3Dshop`. The URL holds it all, so a link restores the view.

const KEPT = ["range", "cohort"];  // filters go along from view to view; what one view selects does not
const listeners = new Set();

export function place() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  return { view, params: new URLSearchParams(query) };
}

export function param(name) {
  return place().params.get(name);
}

/** A link to `view` with the filters of the present place and `chosen` on top; null takes a parameter away. */
export function linkTo(view, chosen = {}) {
  const now = place().params, next = new URLSearchParams();
  for (const name of KEPT) if (now.has(name)) next.set(name, now.get(name));
  for (const [name, value] of Object.entries(chosen)) {
    if (value === null) next.delete(name);
    else next.set(name, value);
  }
  const query = next.toString();
  return query ? `#${view}?${query}` : `#${view}`;
}

/** Changes the present place without leaving the view; the browser's history does not fill with filters. */
export function choose(chosen) {
  const kept = Object.fromEntries(place().params);
  history.replaceState(null, "", linkTo(place().view || "now", { ...kept, ...chosen }));
  for (const listener of listeners) listener();
}

export function onPlaceChange(listener) {
  listeners.add(listener);
}

/** Seconds shown, or null for everything. */
export function shownSeconds() {
  const seconds = Number(param("range"));
  return seconds > 0 ? seconds : null;
}
