// What the page knows, and who wants to hear of it.

const state = {
  status: null,      // /admin/status
  revisions: {},     // name → number that changes when there is more to fetch
  connection: "connecting",
  versions: null,
  rewards: null,
  updates: null,
  drift: null,
  deadLetters: null,
  trajectories: null,
  cohorts: null,
  alarms: [],
  errors: {},        // resource → message, while it cannot be fetched
};
const listeners = new Set();
let scheduled = false;

export function get() {
  return state;
}

export function set(patch) {
  Object.assign(state, patch);
  if (scheduled) return;
  scheduled = true;  // many changes in one turn make one rendering
  queueMicrotask(() => {
    scheduled = false;
    for (const listener of listeners) listener(state);
  });
}

/** Calls `listener(state)` now and after each change; the result stops it. */
export function subscribe(listener) {
  listeners.add(listener);
  listener(state);
  return () => listeners.delete(listener);
}
