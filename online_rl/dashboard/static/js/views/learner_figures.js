// Which figures of an update are drawn, under which names the learner reports them, and what healthy means.

export const FIGURES = [
  { title: "Explained variance", overview: true, keys: ["value/explained_variance", "explained_variance"], note: "of returns by the value model; towards 1" },
  { title: "Mask ratio", keys: ["policy/mask_ratio", "mask_ratio"], note: "tokens outside the trust region; below 0.01", color: "series-4" },
  { title: "KL to base", overview: true, keys: ["policy/kl_to_base", "kl_to_base"], note: "nats a token; held down by the penalty", color: "series-3" },
  { title: "Entropy", overview: true, keys: ["policy/entropy", "entropy"], note: "nats a token; a fall to 0 is collapse" },
  { title: "Staleness", keys: ["batch/staleness_mean", "batch/staleness", "staleness_mean", "staleness"], note: "versions behind; mean of the batch", color: "series-4" },
  { title: "Gradient norm", keys: ["policy/grad_norm", "grad_norm"], note: "before clipping", color: "series-3" },
  { title: "Mismatch", keys: ["mismatch_mean"], by: "version", note: "serving against learner, mean |Δ log p|; below 0.1" },
  { title: "Mismatch KL", keys: ["mismatch_kl"], by: "version", note: "under equal weights; below 0.01", color: "series-4" },
  { title: "Ratio", keys: ["policy/ratio_mean", "ratio_mean"], note: "policy against behaviour; near 1", color: "series-3" },
];

export function valueOf(metrics, keys) {
  for (const key of keys) if (Number.isFinite(metrics[key])) return metrics[key];
  return null;
}
