// The lists and series behind the views. Each is fetched again when its revision in the event stream moves on.

import { getJson, ApiError } from "./api.js";
import { get, set } from "./store.js";

const resources = {
  versions: { revision: "versions", load: () => getJson("/admin/versions") },
  drift: { revision: "drift", load: () => getJson("/admin/drift") },
  deadLetters: { revision: "dead_letters", load: () => getJson("/admin/dead-letters") },
  updates: { revision: "updates", load: loadUpdates },
  rewards: { revision: "rewards", load: loadRewards },
};
const fetched = {};   // resource → revision last fetched
const running = new Set();
let wanted = [];
let range = null;     // seconds shown, or null for everything
let rangeChanged = false;

/** The view on screen needs these resources; others are left alone until they are needed. */
export function need(names) {
  wanted = names;
  refresh();
}

export function rewardRange() {
  return range;
}

export function setRewardRange(seconds) {
  range = seconds;
  rangeChanged = true;
  delete fetched.rewards;
  refresh();
}

export function forgetFetched() {
  for (const name of Object.keys(fetched)) delete fetched[name];
}

export function refresh() {
  const { revisions } = get();
  for (const name of wanted) {
    const now = revisions[resources[name].revision];
    if (now !== undefined && fetched[name] !== now && !running.has(name)) fetchOne(name, now);
  }
}

async function fetchOne(name, revision) {
  running.add(name);
  const errors = { ...get().errors };
  try {
    const loaded = await resources[name].load();
    delete errors[name];
    fetched[name] = revision;
    set({ [name]: loaded, errors });
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof TypeError)) throw error;
    set({ errors: { ...errors, [name]: error.message } });
    await new Promise((done) => setTimeout(done, 3000));
  } finally {
    running.delete(name);
  }
  refresh();  // it may have moved on meanwhile, or failed
}

async function loadUpdates() {
  const known = get().updates?.updates ?? [];
  const since = known.length ? known[known.length - 1].update : null;
  const fresh = await getJson(`/admin/updates?limit=2000${since === null ? "" : `&since=${since}`}`);
  return { ...fresh, updates: [...known, ...fresh.updates] };
}

/** New buckets only: the last one known is asked for again, since it may have grown. */
async function loadRewards() {
  const known = rangeChanged ? null : get().rewards;
  rangeChanged = false;
  const start = range === null ? null : Date.now() / 1000 - range;
  if (known?.at.length && known.at.length < 600) {
    const tail = known.at.length - 1;
    const fresh = await getJson(`/admin/rewards?since=${known.at[tail]}&bucket=${known.bucket_seconds}`);
    if (fresh.bucket_seconds === known.bucket_seconds) {
      const from = start === null ? 0 : known.at.findIndex((at) => at >= start);
      const join = (key) => [...known[key].slice(Math.max(0, from), tail), ...fresh[key]];
      return { ...fresh, at: join("at"), mean: join("mean"), average: join("average"), count: join("count") };
    }
  }
  return getJson(`/admin/rewards?limit=500${start === null ? "" : `&since=${start}`}`);
}
