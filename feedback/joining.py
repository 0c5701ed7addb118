"""Which feedback belongs to which trajectory, what reward it makes, and when the trajectory is released. Pure.

How a reward comes about, in order:

1. Of the feedback of one rater (who posted, for which user) about one target (an answer or the episode) on one metric
   the latest counts: a changed mind, or a client that repeats itself, is one vote.
2. Votes on one target are averaged, then the targets: an answer that ten people rated does not drown the others.
3. The metrics are combined as `feedback.combine` says.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from feedback.assembly import Draft
from feedback.settings import FeedbackSettings
from serving.schemas import Generation

TOKEN_OWNER = "token:"
"""Prefix of the owner of feedback that came with a feedback token instead of an API key."""

UNRATED = "unrated"
NOT_FINITE = "reward_not_finite"
CROWDED = "episode_too_long"
WINDOW_DROPS = frozenset({UNRATED, NOT_FINITE, CROWDED})
"""Reasons for which a generation that could have been trained on was dropped when its window ended."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One stored feedback, as far as joining needs it."""

    feedback_id: str
    owner: str
    inference_id: str | None
    episode_id: str | None
    choice_index: int
    metric_name: str
    value: float
    user_id: str | None
    received_at: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: look again at `until` (Unix seconds), or when feedback arrives."""

    until: float


@dataclass(frozen=True, slots=True)
class Release:
    """Train on it with this reward."""

    reward: float
    metrics: Mapping[str, float]
    rated_at: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Do not train on it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Target:
    """One stored generation, as far as joining needs it."""

    inference_id: str
    choice_index: int
    api_key_id: str
    episode_id: str
    created_at: float
    state: str = "open"
    drop_reason: str | None = None


def target_of(generation: Generation) -> Target:
    """The target that feedback on `generation` is about."""
    return Target(
        inference_id=generation.inference_id,
        choice_index=choice_index(generation),
        api_key_id=generation.api_key_id,
        episode_id=episode_of(generation),
        created_at=generation.created_at,
    )


def episode_of(generation: Generation) -> str:
    """The episode's id; without one the inference is its own episode."""
    return generation.episode_id or generation.inference_id


def choice_index(generation: Generation) -> int:
    """The index of the choice in the response: a request with several prompts numbers choices across them."""
    return generation.prompt_index * generation.sampling.n + generation.choice


def owns(owner: str, target: Target) -> bool:
    """Whether feedback of `owner` may concern `target`: the same API key, or the answer's own token."""
    return owner in (target.api_key_id, TOKEN_OWNER + target.inference_id)


def names(signal: Signal, target: Target) -> bool:
    """Whether `signal` names `target`, whoever posted it.

    Feedback on an episode rates what was generated before it was received: a turn that follows is a new matter.
    """
    if signal.inference_id is not None:
        return signal.inference_id == target.inference_id and signal.choice_index == target.choice_index
    return signal.episode_id == target.episode_id and target.created_at <= signal.received_at


def concerns(signal: Signal, target: Target) -> bool:
    """Whether `signal` rates `target`."""
    return names(signal, target) and owns(signal.owner, target)


def classify(signal: Signal, targets: Iterable[Target]) -> str:
    """The status of a feedback, given the stored generations it may name.

    `waiting`: none of them is stored yet. `joined`: at least one can still be released. `late`: all were released,
    or dropped at the end of their window. `unused`: they are not for training. `refused`: they belong to another key.
    """
    named = [target for target in targets if names(signal, target)]
    mine = [target for target in named if owns(signal.owner, target)]
    if not mine:
        # An episode's name is the client's own: that another key uses it too says nothing about this feedback.
        return "refused" if named and signal.inference_id is not None else "waiting"
    if any(target.state == "open" for target in mine):
        return "joined"
    if any(target.state == "released" or target.drop_reason in WINDOW_DROPS for target in mine):
        return "late"
    return "unused"


def measure(signals: Iterable[Signal]) -> dict[str, float]:
    """One value for each metric that was rated (steps 1 and 2 above)."""
    latest: dict[tuple[str, str, str, str | None], tuple[float, str, float]] = {}
    for signal in signals:
        target = signal.inference_id or f"episode:{signal.episode_id}"
        rater = (signal.metric_name, target, signal.owner, signal.user_id)
        vote = (signal.received_at, signal.feedback_id, signal.value)
        latest[rater] = max(latest.get(rater, vote), vote)
    votes: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (metric, target, _, _), (_, _, value) in latest.items():
        votes[metric][target].append(value)
    return {metric: fmean(fmean(values) for values in targets.values()) for metric, targets in votes.items()}


def combine_reward(metrics: Mapping[str, float], settings: FeedbackSettings) -> float:
    """One scalar of the `metrics` there are (not empty). Weights matter to the mean and the sum only.

    Raises ValueError where the result is not a finite number.
    """
    weights = {name: settings.metrics[name].weight for name in metrics}
    match settings.combine:
        case "weighted_mean":
            total = sum(weights.values())
            reward = sum(weights[name] * value for name, value in metrics.items()) / total if total else math.nan
        case "weighted_sum":
            reward = sum(weights[name] * value for name, value in metrics.items())
        case "product":
            reward = math.prod(metrics.values())
        case "min":
            reward = min(metrics.values())
    if not math.isfinite(reward):
        raise ValueError(f"feedback.combine = {settings.combine} gives {reward} for {dict(metrics)}")
    return reward


def due_at(generation: Generation, settings: FeedbackSettings) -> float:
    """When the window of a generation ends: an episode that may go on also has to have been idle."""
    if generation.episode_id is None:
        return generation.finished_at + settings.wait_seconds
    return generation.finished_at + max(settings.wait_seconds, settings.episode_idle_seconds)


def decide(
    draft: Draft, signals: Sequence[Signal], now: float, settings: FeedbackSettings, *, crowded: bool = False
) -> Wait | Release | Drop:
    """What to do with a trajectory, given every signal that may concern it.

    Released at once when each required metric is in; at the end of the window with the metrics there are, or with
    the default reward, or else dropped. `crowded`: its window ends now, because too many answers wait with it.
    """
    targets = [target_of(generation) for generation in draft.generations]
    mine = [signal for signal in signals if any(concerns(signal, target) for target in targets)]
    known = [signal for signal in mine if signal.metric_name in settings.metrics]
    metrics = measure(known)
    required = {name for name, metric in settings.metrics.items() if metric.required}
    until = max(due_at(generation, settings) for generation in draft.generations)
    complete = bool(metrics) and required <= metrics.keys()
    if not complete and now < until and not crowded:
        return Wait(until)
    if not metrics:
        if settings.default_reward is None:
            return Drop(CROWDED if now < until else UNRATED)
        return Release(settings.default_reward, {}, now)
    try:
        reward = combine_reward(metrics, settings)
    except ValueError:
        return Drop(NOT_FINITE)
    return Release(reward, metrics, max(signal.received_at for signal in known))
