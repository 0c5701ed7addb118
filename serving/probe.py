"""Which weights answer? Decided from log-probabilities of a few sequences, by arithmetic alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 3.0
"""Standard deviations by which the two versions must differ on the probes before their difference proves anything."""


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """Whether the engine serves the version it should. All distances are in nats a token."""

    accepted: bool
    reason: str
    distinguishable: bool
    """False: the probes cannot tell the two versions apart (learning rate 0), so only the tolerance was tested."""
    mismatch_mean: float
    """Mean |engine − learner| under the version that should be served."""
    mismatch_kl: float
    """k3 estimate of KL(engine ‖ learner): mean of exp(d) − 1 − d with d = learner − engine."""
    parent_distance: float
    """Mean |engine − learner| under the parent version."""
    separation: float
    """Mean |difference| of the two versions as the learner computed them."""


def judge_delivery(
    engine: Sequence[float], learner: Sequence[float], parent: Sequence[float], tolerance: float
) -> ProbeVerdict:
    """Judge the engine's log-probabilities of the probed tokens (all sequences of equal length).

    `learner` are those of the version that should be served, `parent` those of the one before. "Closer" is by squared
    distance, the likelihood-ratio test under Gaussian engine noise: with noise σ (the root mean square of the nearer
    residual) its error is σ / √Σ(learner − parent)² standard deviations of one half, so the versions count as
    distinguishable when ½ √Σ(learner − parent)² ≥ 3 σ. Raises ValueError where lengths differ or
    nothing was probed.
    """
    if not engine or not len(engine) == len(learner) == len(parent):
        raise ValueError(f"cannot compare {len(engine)} with {len(learner)} and {len(parent)} log-probabilities")
    size = len(engine)
    to_new = [theirs - ours for ours, theirs in zip(engine, learner, strict=True)]
    to_old = [theirs - ours for ours, theirs in zip(engine, parent, strict=True)]
    gap = [new - old for new, old in zip(learner, parent, strict=True)]
    squared_new, squared_old = sum(d * d for d in to_new), sum(d * d for d in to_old)
    noise = math.sqrt(min(squared_new, squared_old) / size)
    spread = math.sqrt(sum(d * d for d in gap))
    distinguishable = spread > 0 and spread / 2 >= CONFIDENCE * noise
    mean = sum(map(abs, to_new)) / size

    if not math.isfinite(mean):
        accepted, reason = False, "the engine's log-probabilities are not finite"
    elif mean > tolerance:
        accepted, reason = False, f"mean |engine − learner| is {mean:.3f}, more than the tolerance {tolerance:.3f}"
    elif distinguishable and squared_new >= squared_old:
        accepted, reason = False, "the engine is closer to the parent version: the new weights do not answer"
    elif distinguishable:
        accepted, reason = True, "closer to this version than to its parent, and within tolerance"
    else:
        accepted, reason = True, "within tolerance; the probes cannot tell this version from its parent"
    return ProbeVerdict(
        accepted=accepted,
        reason=reason,
        distinguishable=distinguishable,
        mismatch_mean=mean,
        mismatch_kl=sum(math.exp(min(d, 50.0)) - 1 - d for d in to_new) / size if math.isfinite(mean) else math.inf,
        parent_distance=sum(map(abs, to_old)) / size,
        separation=sum(map(abs, gap)) / size,
    )
