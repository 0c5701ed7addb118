"""Seeded streams of rated trajectories, with and without a shift, to measure drift detection on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

COHORTS = 20
TOPICS = 6
VOCABULARY = 49_152
TEMPLATE = tuple(range(1, 25))
"""Tokens that every prompt has."""
VALUE_STEP = 0.05
"""Of the moving average that stands in for the value model."""


@dataclass(frozen=True, slots=True)
class Rated:
    """One trajectory as the detectors see it."""

    reward: float
    residual: float
    tag: str
    """A tag of the request; empty in a stream without cohorts."""
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    rated: Sequence[Rated]
    change: int | None = None
    """Index of the first trajectory behind the shift."""
    cohort: str | None = None
    """The only one that it concerns."""


def still(rng: Generator, length: int, cohorts: int) -> Stream:
    """Constant preference and a constant policy; cohorts differ from each other by up to 0.2."""
    rates = np.full(length, rng.uniform(0.3, 0.9))
    return Stream(_rate(rng, rates, cohorts))


def learning(rng: Generator, length: int, cohorts: int) -> Stream:
    """As in the demo: from 0.1–0.3 to 0.9 within 100–200 trajectories; then the policy itself dips, to 0.65–0.8 for 30
    to 60 trajectories, every 100 to 250."""
    return Stream(_rate(rng, _learn(rng, length), cohorts))


def step(rng: Generator, length: int, cohorts: int, levels: tuple[float, float] = (0.6, 0.2)) -> Stream:
    """All users change their mind halfway."""
    rates = np.where(np.arange(length) < length // 2, *levels)
    return Stream(_rate(rng, rates, cohorts, spread=0.0), change=length // 2)


def reversal(rng: Generator, length: int, cohorts: int) -> Stream:
    """As in the demo: what was learned to 0.9 earns 0.05 from one trajectory to the next."""
    rates = np.where(np.arange(length) < length // 2, _learn(rng, length), 0.05)
    return Stream(_rate(rng, rates, cohorts), change=length // 2)


def cohort_step(rng: Generator, length: int, cohorts: int) -> Stream:
    """One of the cohorts changes its mind halfway, 0.6 → 0.2."""
    tags = _tags(rng, length, cohorts)
    changed = (tags == tags[0]) & (np.arange(length) >= length // 2)
    return Stream(_assemble(rng, np.where(changed, 0.2, 0.6), tags, _topics(rng, length)), length // 2, str(tags[0]))


def other_prompts(rng: Generator, length: int, cohorts: int) -> Stream:
    """Preference stays; halfway, prompts of two topics that earn 0.3 take over from those that earn 0.8."""
    share = np.where(np.arange(length) < length // 2, 0.15, 0.85)
    topics = np.where(rng.random(length) < share, rng.integers(0, 2, length), rng.integers(2, TOPICS, length))
    return Stream(
        _assemble(rng, np.where(topics < 2, 0.3, 0.8), _tags(rng, length, cohorts), topics), change=length // 2
    )


def other_users(rng: Generator, length: int, cohorts: int) -> Stream:
    """Preference stays; halfway, users that were never seen come, and rate 0.3 where the others rate 0.8."""
    tags = _tags(rng, length, max(2, cohorts))
    new = (np.arange(length) >= length // 2) & (rng.random(length) < 0.8)
    return Stream(
        _assemble(rng, np.where(new, 0.3, 0.8), np.where(new, "new", tags), _topics(rng, length)), change=length // 2
    )


Maker = Callable[[Generator, int, int], Stream]


def _learn(rng: Generator, length: int) -> np.ndarray:
    rates = np.interp(np.arange(length), [0, rng.uniform(100, 200)], [rng.uniform(0.1, 0.3), 0.9])
    at = int(rng.integers(200, 300))
    while at < length:
        lasts = int(rng.integers(30, 61))
        rates[at : at + lasts] = rng.uniform(0.65, 0.8)
        at += lasts + int(rng.integers(100, 250))
    return rates


def _rate(rng: Generator, rates: np.ndarray, cohorts: int, spread: float = 0.1) -> list[Rated]:
    tags = _tags(rng, len(rates), cohorts)
    offsets = dict(zip(np.unique(tags), rng.uniform(-spread, spread, max(1, cohorts)), strict=False))
    own = np.array([offsets[tag] for tag in tags]) if cohorts else 0.0
    return _assemble(rng, np.clip(rates + own, 0.02, 0.98), tags, _topics(rng, len(rates)))


def _tags(rng: Generator, length: int, cohorts: int) -> np.ndarray:
    return np.array([f"c{number}" for number in rng.integers(0, cohorts, length)] if cohorts else [""] * length)


def _topics(rng: Generator, length: int) -> np.ndarray:
    return rng.integers(0, TOPICS, length)


def _assemble(rng: Generator, rates: np.ndarray, tags: np.ndarray, topics: np.ndarray) -> list[Rated]:
    """Prompts: the template, and 5 to 20 tokens, 80% of them from the topic's own hundred, of Zipf's frequencies."""
    frequencies = 1.0 / np.arange(1, 101)
    frequencies /= frequencies.sum()
    rewards = (rng.random(len(rates)) < rates).astype(float)
    expected, rated = 0.5, []
    for reward, tag, topic in zip(rewards.tolist(), tags.tolist(), topics.tolist(), strict=True):
        size = int(rng.integers(5, 21))
        words = np.where(
            rng.random(size) < 0.8,
            1000 + 100 * topic + rng.choice(100, size, p=frequencies),
            rng.integers(0, VOCABULARY, size),
        )
        rated.append(Rated(reward, reward - expected, tag, (*TEMPLATE, *words.tolist())))
        expected += VALUE_STEP * (reward - expected)
    return rated
