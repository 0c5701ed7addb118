// The lists and series behind the views. Each is fetched again when its revision in the event stream moves on.

import { getJson, ApiError } from "./api.js";
import { param, shownSeconds } from "./place.js";
import { get, set } from "./store.js";

const resources = {
  versions: { revision: "versions", load: () => getJson("/admin/versions") },
  drift: { revision: "drift", load: () => getJson("/admin/drift") },
  deadLetters: { revision: "dead_letters", load: () => getJson("/admin/dead-letters") },
  updates: { revision: "updates", load: loadUpdates },
  rewards: { revision: "rewards", load: loadRewards },
  cohorts: { revision: "rewards", load: () => getJson("/admin/cohorts"), atMostEvery: 10000 },
  trajectories: { revision: "rewards", load: () => getJson(`/admin/trajectories?limit=60${param("order") === "worst" ? "&worst=true" : ""}`), atMostEvery: 5000 },
};
const fetched = {};         // resource → revision last fetched
const running = new Map();  // resource → the fetch whose answer counts; an older one may still be on its way
let wanted = [];
let asked = "";             // what the lists depend on beside their revision: range and order

/** The view on screen needs these resources; others are left alone until they are needed. */
export function need(names) {
  wanted = names;
  refresh();
}

/** The place changed: what depends on it answers another question now. */
export function follow() {
  const now = [shownSeconds(), param("order")].join();
  if (now === asked) return;
  asked = now;
  forget("rewards");
  forget("trajectories");
  refresh();
}

export function forgetFetched() {
  for (const name of Object.keys(resources)) forget(name);
}

function forget(name) {
  delete fetched[name];
  running.delete(name);  // what is on its way answers another question
}

export function refresh() {
  const { revisions } = get();
  for (const name of wanted) {
    const now = revisions[resources[name].revision];
    if (now !== undefined && fetched[name] !== now && !running.has(name)) fetchOne(name, now);
  }
}

async function fetchOne(name, revision) {
  const mine = Symbol(name);
  const counts = () => running.get(name) === mine;
  running.set(name, mine);
  try {
    const loaded = await resources[name].load();
    if (!counts()) return;
    const { [name]: _, ...errors } = get().errors;
    fetched[name] = revision;
    set({ [name]: loaded, errors });
    // A list that costs more is not read again for every single reward.
    if (resources[name].atMostEvery) await new Promise((done) => setTimeout(done, resources[name].atMostEvery));
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof TypeError)) throw error;
    if (!counts()) return;
    set({ errors: { ...get().errors, [name]: error.message } });
    await new Promise((done) => setTimeout(done, 3000));
  } finally {
    if (counts()) running.delete(name);
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
  const asked = shownSeconds();
  const known = get().rewards?.range === asked ? get().rewards : null;
  const start = asked === null ? null : Date.now() / 1000 - asked;
  if (known?.at.length && known.at.length < 600) {
    const tail = known.at.length - 1;
    const fresh = await getJson(`/admin/rewards?since=${known.at[tail]}&bucket=${known.bucket_seconds}`);
    if (fresh.bucket_seconds === known.bucket_seconds) {
      const from = start === null ? 0 : known.at.filter((at) => at < start).length;
      const join = (key) => [...known[key].slice(from, tail), ...fresh[key]];
      const series = { at: join("at"), mean: join("mean"), average: join("average"), count: join("count") };
      return { ...fresh, ...series, range: asked };
    }
  }
  return { ...await getJson(`/admin/rewards?limit=500${start === null ? "" : `&since=${start}`}`), range: asked };
}
