"""The values of one metric in one cohort, beside those of the rest of the traffic in the same time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from online_rl.attribution import CLEARLY, FEW, MIN_VARIANCE
from online_rl.change_points import WINDOW, Fall
from online_rl.detectors import Detector
from online_rl.drift_events import OpenShift

APART = 3.0
"""Standard errors by which a cohort's fall must be larger than that of the rest."""


class Entry(NamedTuple):
    """One value of the cohort, and what all traffic had come to by then."""

    value: float
    at: float
    number: int
    """Values of all traffic so far, this one included."""
    total: float
    """Their sum."""


class CohortStream(BaseModel):
    """Immutable; what follows from one more value is another one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str
    cohort: str
    seen: int = 0
    entries: tuple[Entry, ...] = ()
    open_shift: OpenShift | None = None

    @property
    def values(self) -> list[float]:
        return [entry.value for entry in self.entries]

    def add(self, entry: Entry) -> "CohortStream":
        return self.model_copy(update={"seen": self.seen + 1, "entries": (*self.entries[-WINDOW + 1 :], entry)})

    def since(self, at: float) -> "CohortStream":
        """Without what came before `at`."""
        return self.model_copy(update={"entries": tuple(entry for entry in self.entries if entry.at >= at)})


@dataclass(frozen=True, slots=True)
class CohortFall:
    """A fall of the cohort, and what the rest of the traffic did meanwhile."""

    fall: Fall
    rest_before: float
    rest_after: float


def find_cohort_fall(entries: Sequence[Entry], threshold: float, detector: Detector) -> CohortFall | None:
    """A fall that the rest of the traffic does not share: it did not clearly fall, and clearly less than the cohort, by
    at most half as much. None where there is no rest to compare with; such a cohort is all traffic."""
    values = [entry.value for entry in entries]
    fall = detector(values, threshold)
    if fall is None:
        return None
    split = len(values) - fall.since
    before = _Rest.between(entries[0], entries[split - 1], values[1:split])
    after = _Rest.between(entries[split - 1], entries[-1], values[split:])
    if min(before.number, after.number) < FEW:
        return None
    own, rest = fall.before - fall.after, before.mean - after.mean
    variance = max(MIN_VARIANCE, fmean((value - fmean(values)) ** 2 for value in values))
    rest_error = variance * (1 / before.number + 1 / after.number)
    error = rest_error + variance * (1 / split + 1 / fall.since)
    if rest > min(own / 2, own - APART * math.sqrt(error), CLEARLY * math.sqrt(rest_error)):
        return None
    return CohortFall(fall, before.mean, after.mean)


class _Rest(NamedTuple):
    """The traffic outside the cohort in a stretch."""

    number: int
    total: float

    @classmethod
    def between(cls, first: Entry, last: Entry, own: Sequence[float]) -> "_Rest":
        """Behind `first` up to `last`, without the cohort's `own` values in it."""
        return cls(last.number - first.number - len(own), last.total - first.total - sum(own))

    @property
    def mean(self) -> float:
        return self.total / self.number
