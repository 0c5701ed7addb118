// The page: header, tabs, the view on screen, and the event stream behind them.

import { askKey, toast } from "./dialogs.js";
import { forgetKey, hasKey, setKey } from "./api.js";
import { follow } from "./live.js";
import { h, pill, render } from "./dom.js";
import { duration } from "./format.js";
import { linkTo, onPlaceChange, place } from "./place.js";
import { follow as followPlace, forgetFetched, need, refresh } from "./resources.js";
import { get, set, subscribe } from "./store.js";
import { startTheme } from "./theme.js";
import * as now from "./views/now.js";
import * as adaptation from "./views/adaptation.js";
import * as learner from "./views/learner.js";
import * as feedback from "./views/feedback.js";
import * as versions from "./views/versions.js";
import * as trajectories from "./views/trajectories.js";

const VIEWS = { now, adaptation, learner, feedback, versions, trajectories };
const CONNECTION = { connecting: "Connecting", live: "Live", lost: "Reconnecting" };
const byId = (id) => document.getElementById(id);
let shown = null, mounted = null;

function route(focus = false) {
  const name = place().view in VIEWS ? place().view : "now";
  tabs(name);
  followPlace();
  if (name === shown) return mounted.update(get());
  mounted?.destroy();
  shown = name;
  const root = byId("view");
  root.replaceChildren(h("h1", { class: "visually-hidden" }, VIEWS[name].title));
  mounted = VIEWS[name].mount(root);
  document.title = `${VIEWS[name].title} · Online RL`;
  need(VIEWS[name].needs);
  mounted.update(get());
  if (focus) root.focus({ preventScroll: true });
}

function tabs(current) {
  for (const link of byId("tabs").children) {
    link.setAttribute("href", linkTo(link.dataset.view));
    if (link.dataset.view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function header({ status, connection }) {
  const at = byId("connection");
  at.className = `connection ${connection}`;
  at.textContent = CONNECTION[connection];
  byId("banner").hidden = !(connection === "lost" && status);
  byId("banner").textContent = "The connection is lost. What is shown is the last that was known.";
  if (!status) return;
  render(byId("top-state"),
    status.live_version === null ? pill("no live version", "warn") : pill(`v${status.live_version} live`, "ok"),
    status.learning_frozen ? pill("learning frozen", "warn", status.learning_frozen_reason) : pill("learning", "accent"));
  render(byId("foot"), h("span", {}, `up ${duration(status.seconds)}`), !hasKey() && h("a", { href: "/metrics" }, "Prometheus metrics"),
    !hasKey() && h("a", { href: "/admin/status" }, "Status as JSON"));  // links cannot carry the key
}

async function stayConnected() {
  let problem = null;
  for (;;) {
    await follow("/admin/events", {
      onEvent(name, data) {
        if (name !== "status") return;
        set({ status: data.status, revisions: data.revisions, alarms: data.alarms });
        refresh();
      },
      onState: (connection) => set({ connection }),
      onRefused: (error) => { problem = hasKey() ? error.message : null; },
    });
    forgetKey();
    const key = await askKey(problem);
    if (key === null) {
      toast("Without an admin key there is nothing to show. Reload the page to give one.", "bad");
      return;
    }
    setKey(key);
    forgetFetched();
  }
}

for (const [name, view] of Object.entries(VIEWS)) byId("tabs").append(h("a", { href: `#${name}`, "data-view": name }, view.title));
startTheme(byId("theme"));
addEventListener("hashchange", () => route(true));
onPlaceChange(() => route());
route();
subscribe((state) => {
  header(state);
  mounted?.update(state);
});
setInterval(() => mounted?.update(get()), 5000);  // ages of heartbeats go on when nothing arrives
stayConnected();
