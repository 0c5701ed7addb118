"""Which prompts are alike, from their token ids alone: clusters that are learned once and then stand still. Pure.

A prompt is the set of its tokens, hashed with signs into `BINS` numbers, so that distances stay what they were in
expectation (Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009). What all prompts share, such
as the chat template, is the same offset in all and goes with the mean; the direction of what is left counts, not its
length. The first `REFERENCE` prompts are clustered by spherical k-means (Dhillon and Modha 2001); from then on the
clusters are fixed, so that prompts of an unchanged mix have labels of unchanged shares. What is further from every
cluster than all but `OUTSIDE` of the reference is of none of them.

Hashed tokens tell topics and forms of request apart, not meanings: two wordings of one question may be two clusters.
"""

import math
import random
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

BINS = 64
REFERENCE = 256
"""Prompts that clusters are learned from."""
OUTSIDE = 0.05
ROUNDS = 10
STARTS = 4
MOST_TOKENS = 512
"""Of a longer prompt the last ones count."""
Counts = tuple[int, ...]
Point = tuple[float, ...]


class PromptClusters(BaseModel):
    """The clusters, and the prompts that new ones will be learned from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: int = 0
    """How often they were learned; 0: not yet."""
    mean: Point = ()
    centres: tuple[Point, ...] = ()
    radius: float = 0.0
    """Distance beyond which a prompt is of no cluster."""
    learning: bool = True
    waiting: tuple[Counts, ...] = ()

    def label(self, prompt: Sequence[int]) -> str:
        """``generation.number`` of the prompt's cluster, ``generation.other`` for none of them; empty while there are
        no clusters."""
        if not self.centres or not prompt:
            return ""
        point = _direction(hash_tokens(prompt), self.mean)
        distance, number = _nearest(point, self.centres)
        return f"{self.generation}.{'other' if distance > self.radius else number}"

    def learn(self, prompt: Sequence[int], clusters: int) -> "PromptClusters":
        """With one more prompt seen; the same where nothing is to be learned."""
        if not self.learning or not prompt or clusters < 1:
            return self
        waiting = (*self.waiting, hash_tokens(prompt))
        if len(waiting) < REFERENCE:
            return self.model_copy(update={"waiting": waiting})
        mean = _mean(waiting)
        points = [_direction(counts, mean) for counts in waiting]
        centres = find_centres(points, clusters)
        distances = sorted(_nearest(point, centres)[0] for point in points)
        radius = distances[int((1.0 - OUTSIDE) * len(distances))]
        return PromptClusters(
            generation=self.generation + 1, mean=mean, centres=tuple(centres), radius=radius, learning=False
        )

    def anew(self) -> "PromptClusters":
        """To be learned from the prompts that come now; the old clusters serve until then."""
        return self.model_copy(update={"learning": True, "waiting": ()})


def hash_tokens(tokens: Sequence[int]) -> Counts:
    """``[BINS]``: the set of `tokens`, each adding ±1 to a bin."""
    counts = [0] * BINS
    for token in set(tokens[-MOST_TOKENS:]):
        # Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4): the high bits are the good ones.
        mixed = (token * 2654435761 + 0x9E3779B9) & 0xFFFFFFFF
        mixed = ((mixed ^ mixed >> 15) * 2246822519) & 0xFFFFFFFF
        counts[mixed >> 26] += 1 if mixed >> 25 & 1 else -1
    return tuple(counts)


def find_centres(points: Sequence[Point], clusters: int) -> list[Point]:
    """Spherical k-means of unit vectors, at most `clusters`: k-means++ (Arthur and Vassilvitskii 2007) under fixed
    seeds, Lloyd's rounds, and the best of `STARTS`."""
    found = [_improve(_start(points, clusters, random.Random(seed)), points) for seed in range(STARTS)]
    return min(found, key=lambda centres: sum(_nearest(point, centres)[0] ** 2 for point in points))


def _start(points: Sequence[Point], clusters: int, chance: random.Random) -> list[Point]:
    centres = [chance.choice(points)]
    while len(centres) < clusters:
        weights = [_nearest(point, centres)[0] ** 2 for point in points]
        if not any(weights):
            break
        centres.append(chance.choices(points, weights)[0])
    return centres


def _improve(centres: list[Point], points: Sequence[Point]) -> list[Point]:
    origin = (0.0,) * BINS
    for _ in range(ROUNDS):
        members: list[list[Point]] = [[] for _ in centres]
        for point in points:
            members[_nearest(point, centres)[1]].append(point)
        centres = [_direction(_mean(own), origin) if own else old for own, old in zip(members, centres, strict=True)]
    return centres


def _nearest(point: Point, centres: Sequence[Point]) -> tuple[float, int]:
    """Distance and number of the nearest centre."""
    return min((math.dist(point, centre), number) for number, centre in enumerate(centres))


def _mean(points: Sequence[Sequence[float]]) -> Point:
    return tuple(math.fsum(values) / len(points) for values in zip(*points, strict=True))


def _direction(point: Sequence[float], origin: Point) -> Point:
    """The unit vector from `origin` to `point`; where they are one, 0."""
    moved = [value - start for value, start in zip(point, origin, strict=True)]
    size = math.hypot(*moved) or 1.0
    return tuple(round(value / size, 6) for value in moved)
