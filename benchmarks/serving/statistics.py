"""What the blocks of one row say: paired ratios and differences of two servers, with their intervals. Pure.

A round holds one block of each side, close to each other in time, so that what slows the machine for longer than a
round cancels in the pair. Rounds are what varies: every interval is over rounds, at 95%.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Literal

import numpy as np
from scipy import stats

from benchmarks.papers.statistics import Interval, find_interval
from benchmarks.serving.load import Block

Side = Literal["plain", "ours", "control"]
SIDES: tuple[Side, ...] = ("plain", "ours", "control")
"""`control` is the plain server once more: what the comparison finds where there is nothing to find."""

Round = Mapping[Side, Block]
RESAMPLES = 999


def order_sides(rounds: int, seed: int) -> list[tuple[Side, ...]]:
    """The order of the sides in each round. Any six rounds in a row hold every order once, so no side gains by its
    place."""
    orders = list(permutations(SIDES))
    random.Random(seed).shuffle(orders)
    return [orders[index % len(orders)] for index in range(rounds)]


def compare_throughput(rounds: Sequence[Round], side: Side) -> Interval:
    """`side` / plain in tokens a second: geometric mean of the rounds' ratios; Student's t on their logarithms."""
    logs = [math.log(each[side].throughput / each["plain"].throughput) for each in rounds]
    found = find_interval(logs)
    return Interval(*(None if value is None else math.exp(value) for value in (found.estimate, found.low, found.high)))


def compare_first_tokens(rounds: Sequence[Round], side: Side) -> Interval:
    """Median time to the first token of `side` less plain's, in ms; interval by the bootstrap over rounds."""

    def difference(chosen: Sequence[Round]) -> float:
        medians = [np.median(pool(chosen, each, lambda block: block.first_tokens)) for each in (side, "plain")]
        return 1000 * float(medians[0] - medians[1])

    return bootstrap_rounds(rounds, difference)


def compare_gaps(rounds: Sequence[Round], side: Side) -> Interval:
    """99th percentile of the time between tokens, `side` / plain; interval by the bootstrap over rounds."""

    def ratio(chosen: Sequence[Round]) -> float:
        ours, plain = (find_gap_p99(chosen, each) for each in (side, "plain"))
        return ours / plain

    return bootstrap_rounds(rounds, ratio)


def find_gap_p99(rounds: Sequence[Round], side: Side) -> float:
    """Seconds, over the gaps of all rounds together."""
    return float(np.percentile(pool(rounds, side, lambda block: block.gaps), 99))


def pool(rounds: Sequence[Round], side: Side, values: Callable[[Block], Sequence[float]]) -> list[float]:
    return [value for each in rounds for value in values(each[side])]


def bootstrap_rounds(rounds: Sequence[Round], statistic: Callable[[Sequence[Round]], float]) -> Interval:
    """`statistic` of all rounds, and its percentile interval when rounds are drawn with replacement.

    The bounds are None for fewer than two rounds.
    """
    estimate = statistic(rounds)
    if len(rounds) < 2:
        return Interval(estimate, None, None)
    found = stats.bootstrap(
        (np.arange(len(rounds)),),
        lambda drawn: statistic([rounds[index] for index in drawn]),
        vectorized=False,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(estimate, float(found.low), float(found.high))


def overlap(first: Interval, second: Interval) -> bool:
    """Whether two intervals share a value; True where one has no bounds, as then nothing tells them apart."""
    bounds = (first.low, first.high, second.low, second.high)
    if any(bound is None for bound in bounds):
        return True
    low, high, other_low, other_high = (float(bound) for bound in bounds if bound is not None)
    return low <= other_high and other_low <= high
