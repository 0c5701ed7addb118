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
const fetched = {};         // resource → revision last fetched
const running = new Map();  // resource → the fetch whose answer counts; an older one may still be on its way
let wanted = [];
let range = null;           // seconds shown, or null for everything

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
  forget("rewards");
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
  const asked = range;
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
