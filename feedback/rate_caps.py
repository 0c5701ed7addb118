"""How much feedback one user, or one API key, may send: so many a minute, a minute's worth at once."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST_NAMES = 16_384
"""Whoever was silent for a minute is as good as unknown; beyond so many the longest silent are forgotten."""


class RateCap:
    """A bucket for each name that holds `per_minute` and fills by itself. Not thread-safe; None: no cap."""

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """Name → (what is left, as of when)."""

    def take(self, name: Hashable) -> float:
        """0.0 where `name` may send one now, and it is counted; else the seconds until it may."""
        if self._per_minute is None:
            return 0.0
        now, rate = self._clock(), self._per_minute / 60
        left, since = self._buckets.pop(name, (self._per_minute, now))
        left = min(self._per_minute, left + (now - since) * rate)
        taken = left >= 1
        self._buckets[name] = (left - taken, now)
        if len(self._buckets) > MOST_NAMES:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - left) / rate
