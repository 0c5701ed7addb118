// What an operator can change. Each asks first, and says what came of it.

import { postJson, ApiError } from "./api.js";
import { confirm, toast } from "./dialogs.js";

async function act(question, path, done) {
  const reason = await confirm(question);
  if (reason === null) return;
  try {
    await postJson(path, { reason });
    toast(done);
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof TypeError)) throw error;
    toast(error.message, "bad");
  }
}

export function promote(version) {
  return act({
    title: `Promote version ${version}?`,
    text: "The replicas load it and prove with probes that it answers. Until then the present version stays live.",
    action: `Promote v${version}`,
  }, `/admin/versions/${version}/promote`, `Version ${version} is on its way to the replicas.`);
}

export function rollBack(live) {
  return act({
    title: `Roll back version ${live}?`,
    text: "The version that was live before it is put back, with the same proof as any other.",
    action: "Roll back", danger: true,
  }, "/admin/rollback", `Rolling back version ${live}.`);
}

export function freeze() {
  return act({
    title: "Freeze learning?",
    text: "Answers and feedback go on and are stored. No update runs until learning is resumed.",
    action: "Freeze learning", danger: true,
  }, "/admin/freeze", "Learning is frozen.");
}

export function resume() {
  return act({
    title: "Resume learning?",
    text: "The learner goes on with the trajectories that wait for it.",
    action: "Resume learning",
  }, "/admin/resume", "Learning goes on.");
}
