"""Which trajectories may train. What is refused is counted by reason; nothing is repaired or padded."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from feedback.schemas import Trajectory
from online_rl.drop_reasons import Reason
from online_rl.objectives import Needs


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused trajectory: the reason it is counted under, and a sentence that names the field."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What a trajectory must fulfil."""

    max_staleness: int
    max_tokens: int
    vocabulary: int
    objective: str
    needs: Needs
    train_greedy: bool = False
    train_structured: bool = False


def find_refusal(
    trajectory: Trajectory,
    rules: AdmissionRules,
    *,
    current_version: int,
    rejected_versions: Collection[int] = (),
    rated_since: float = -math.inf,
) -> Refusal | None:
    """None where `trajectory` may train, else why not.

    `current_version` is the newest version that is, or is about to be, live. Tokens of a version whose delivery
    failed its proof (`rejected_versions`) were sampled by unknown weights and never train. What was rated before
    `rated_since` (Unix seconds) teaches a taste that is gone.
    """
    if trajectory.rated_at < rated_since:
        detail = f"rated {rated_since - trajectory.rated_at:.1f} s before the change of taste; see response.drop_older"
        return Refusal(Reason.BEFORE_SHIFT, detail)
    if len(trajectory.token_ids) > rules.max_tokens:
        detail = f"token_ids has {len(trajectory.token_ids)} tokens, learner.max_tokens is {rules.max_tokens}"
        return Refusal(Reason.TOO_LONG, detail)
    if not 0 <= min(trajectory.token_ids) <= max(trajectory.token_ids) < rules.vocabulary:
        return Refusal(Reason.UNKNOWN_TOKEN, f"token_ids leave the vocabulary of {rules.vocabulary}: another model's?")
    if not math.isfinite(trajectory.reward):
        return Refusal(Reason.NON_FINITE, f"reward is {trajectory.reward}")
    if trajectory.greedy and not rules.train_greedy:
        return Refusal(Reason.GREEDY, "greedy: sampled at temperature 0; learner.train_greedy would admit it")
    if trajectory.structured and not rules.train_structured:
        return Refusal(
            Reason.STRUCTURED, "structured: log-probabilities are after a mask; see learner.train_structured"
        )
    if trajectory.behavior_logprobs is None:
        if rules.needs.behavior_logprobs:
            detail = f"behavior_logprobs is missing and learner.objective = {rules.objective} needs it"
            return Refusal(Reason.MISSING_LOGPROBS, detail)
    elif not all(math.isfinite(logprob) for logprob in trajectory.behavior_logprobs):
        return Refusal(Reason.NON_FINITE, "behavior_logprobs holds a value that is not finite")
    return _find_version_refusal(trajectory, rules, current_version, rejected_versions)


def _find_version_refusal(
    trajectory: Trajectory, rules: AdmissionRules, current_version: int, rejected_versions: Collection[int]
) -> Refusal | None:
    oldest = trajectory.oldest_version
    if trajectory.spans is None or oldest is None:
        if rules.needs.versions:
            detail = f"spans is missing and learner.objective = {rules.objective} needs the versions"
            return Refusal(Reason.MISSING_VERSIONS, detail)
        return None
    if current_version - oldest > rules.max_staleness:
        detail = f"spans begin at version {oldest}, {current_version} is current, max_staleness {rules.max_staleness}"
        return Refusal(Reason.STALE, detail)
    bad = {span.version for span in trajectory.spans} & set(rejected_versions)
    if bad:
        return Refusal(Reason.REJECTED_VERSION, f"spans name the rejected version {min(bad)}")
    return None
