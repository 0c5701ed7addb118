// Which figures of an update are drawn, under which names the learner reports them, and what healthy means.
// `by: "version"` figures are measured when a version is published or proved, not at each update.

export const FIGURES = [
  { title: "Explained variance", key: "value/explained_variance", overview: true, note: "of returns by the value model; towards 1" },
  { title: "Mask ratio", key: "policy/mask_ratio", note: "tokens outside the trust region; below 0.01", color: "series-4" },
  { title: "KL to base", key: "policy/kl_to_base", overview: true, note: "nats a token; held down by the penalty", color: "series-3" },
  { title: "Entropy", key: "policy/entropy", overview: true, note: "nats a token; a fall to 0 is collapse", color: "series-4" },
  { title: "Staleness", key: "staleness/mean", note: "versions behind; mean of the batch" },
  { title: "Gradient norm", key: "policy/grad_norm", note: "of the policy, before clipping", color: "series-3" },
  { title: "Mismatch", key: "mismatch_mean", by: "version", note: "serving against learner, mean |Δ log p|; below 0.1" },
  { title: "Mismatch KL", key: "mismatch_kl", by: "version", note: "under equal weights; below 0.01", color: "series-4" },
  { title: "Value gradient norm", key: "value/grad_norm", note: "of the value model, before clipping", color: "series-3" },
];
