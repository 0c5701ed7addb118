"""What was seen, as figures: which weights spoke, how far from an undisturbed run, how memory grew. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scipy import stats

from serving.schemas import VersionSpan

SIGNIFICANT = 0.01
NEGLIGIBLE = 1e-3
"""Nats a token: a difference of mean distances below this is none, whatever a test says of it."""


def find_favourite(version: int, favourites: Sequence[int]) -> int | None:
    """The token that `version` favours; None for the base model. Versions take turns through the favourites."""
    return None if version == 0 else favourites[(version - 1) % len(favourites)]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled tokens by what they say of their recorded version."""

    telling: int = 0
    """The favourite of the version that is recorded for it."""
    silent: int = 0
    """Nobody's favourite."""
    untrue: int = 0
    """The favourite of another version."""

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.telling + other.telling, self.silent + other.silent, self.untrue + other.untrue)

    @property
    def total(self) -> int:
        return self.telling + self.silent + self.untrue


def count_tokens(token_ids: Sequence[int], spans: Sequence[VersionSpan], favourites: Sequence[int]) -> Tokens:
    """Raises ValueError where `spans` reach over as many versions as there are favourites: then two share one."""
    versions = [span.version for span in spans]
    if max(versions, default=0) - min(versions, default=0) >= len(favourites):
        raise ValueError(f"versions {min(versions)} to {max(versions)} in one answer share favourites")
    known = frozenset(favourites)
    counts = [0, 0, 0]
    for span in spans:
        own = find_favourite(span.version, favourites)
        for token in token_ids[span.start : span.end]:
            counts[0 if token == own else 2 if token in known else 1] += 1
    return Tokens(*counts)


def find_distance(captured: Sequence[float], undisturbed: Sequence[float]) -> float:
    """Mean |difference| of log-probabilities of the same tokens, nats."""
    return fmean(abs(a - b) for a, b in zip(captured, undisturbed, strict=True))


@dataclass(frozen=True, slots=True)
class Distances:
    """Of answers in flight during a swap, and of a control without one; each to an undisturbed run."""

    in_flight: float
    control: float
    p: float
    """Chance of ranks as high as those in flight, were both alike (Mann-Whitney)."""
    answers: tuple[int, int]

    @property
    def further(self) -> bool:
        """Whether those in flight are further than the control, beyond chance and by more than nothing."""
        return self.p < SIGNIFICANT and self.in_flight - self.control > NEGLIGIBLE


def compare_distances(in_flight: Sequence[float], control: Sequence[float]) -> Distances | None:
    """None where one side holds nothing."""
    if not in_flight or not control:
        return None
    p = float(stats.mannwhitneyu(in_flight, control, alternative="greater").pvalue)
    return Distances(fmean(in_flight), fmean(control), p, (len(in_flight), len(control)))


def find_growth(samples: Sequence[float]) -> float | None:
    """By what share the last tenth's median lies above that of the second tenth; the first tenth is warm-up.

    None for fewer than 20 samples.
    """
    tenth = len(samples) // 10
    if tenth < 2:
        return None
    return median(samples[-tenth:]) / median(samples[tenth : 2 * tenth]) - 1
