"""What the rows say: when a run collapsed, and which claims their spread over the seeds supports."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

WINDOW = 50
"""Updates in every moving mean of rewards."""
CURVE_STEP = 10
"""Updates between two points of a stored curve."""
GAIN = 0.2
"""A run whose best mean is not this much above its start did not learn."""
CONFIDENCE = 0.95

Outcome = Literal["stable", "collapsed", "did_not_learn"]


def moving_means(rewards: Sequence[float], window: int = WINDOW) -> list[float]:
    """Means of `window` rewards in a row; entry i ends with reward ``i + window − 1``. One mean of all if fewer."""
    window = min(window, len(rewards))
    sums = np.cumsum([0.0, *rewards])
    return ((sums[window:] - sums[:-window]) / window).tolist()


def find_collapse(rewards: Sequence[float], window: int = WINDOW) -> int | None:
    """The first update after which the mean of `window` rewards stays below half of its best; None if it does not.

    `rewards` holds one reward an update. The update counted from 1 is the last one of the first such mean.
    """
    means = moving_means(rewards, window)
    half = max(means) / 2
    first = len(means)
    while first > 0 and means[first - 1] < half:
        first -= 1
    return None if first == len(means) else first + min(window, len(rewards))


def find_gain(start: float, rewards: Sequence[float], window: int = 5) -> int | None:
    """The first update, counted from 1, at which the mean of `window` rewards is 0.2 above the start; None if never."""
    for index, mean in enumerate(moving_means(rewards, window)):
        if mean >= start + GAIN:
            return index + min(window, len(rewards))
    return None


def judge_run(start: float, rewards: Sequence[float], window: int = WINDOW) -> Outcome:
    """`start`: the reward before training. A run that never learned cannot be called stable, nor collapsed."""
    if max(moving_means(rewards, window)) < start + GAIN:
        return "did_not_learn"
    return "stable" if find_collapse(rewards, window) is None else "collapsed"


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its 95% interval by Student's t; the bounds are None for fewer than two values."""

    estimate: float | None
    low: float | None
    high: float | None


def find_interval(values: Sequence[float]) -> Interval:
    if len(values) < 2:
        return Interval(values[0] if values else None, None, None)
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    width = error * float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return Interval(mean, mean - width, mean + width)


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that an interval supports (held), contradicts (not held) or leaves open (None)."""

    claim: str
    held: bool | None
    estimate: float | None
    low: float | None
    high: float | None
    measure: str
    """What the estimate is, of how many seeds, and by which kind of interval."""


def judge_claim(
    claim: str, values: Sequence[float], *, side: Literal["above", "below"], bound: float, measure: str
) -> Claim:
    """`claim` holds where the whole interval of the mean of `values` lies on that `side` of `bound`."""
    interval = find_interval(values)
    held: bool | None = None
    if interval.low is not None and interval.high is not None:
        above, below = interval.low > bound, interval.high < bound
        if above or below:
            held = above if side == "above" else below
    said = f"{measure}; {side} {bound:g} wanted; {len(values)} seeds, 95% interval by Student's t"
    return Claim(claim, held, interval.estimate, interval.low, interval.high, said)
