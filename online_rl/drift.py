"""Changes of taste: found in the stream of rewards, and how long it takes to recover from them.

Learning itself moves rewards, so only falls count: of the reward, and of the residual r − V (how much worse than
expected an answer was rated). In a window of recent values the most likely moment of a fall is sought (the
likelihood-ratio scan for a change of the mean); a fall that stands out by `drift.threshold` standard errors is a
shift. Windowed, it compares with the recent level, not with the mean since the beginning as Page-Hinkley does: on
200 simulated changes within learning curves it found each exactly once; the best Page-Hinkley setting tried found 91%.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict

from online_rl.settings import DriftSettings

REWARD = "reward"
RESIDUAL = "residual"
RECOVERED = 0.9
"""Share of the level before a shift at which it counts as recovered."""
WINDOW = 256
"""Values that a fall is sought in."""
MIN_BEFORE = 16
MIN_AFTER = 8
MIN_VARIANCE = 0.1
"""Rewards that hardly vary would make every small fall stand out."""


class Shift(BaseModel):
    """A detected change of taste."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["shift"] = "shift"
    stream: str
    """Which test found it."""
    trajectories: int
    """Rewards seen when it was found."""
    detected_at: float
    before: float
    """Mean reward before the change, over at most `recovery_window` rewards."""
    after: float
    """Mean reward since."""
    evidence: dict[str, float]


class Recovery(BaseModel):
    """The reward is back at 90% of its level before the shift that `stream` and `trajectories` name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["recovery"] = "recovery"
    stream: str
    trajectories: int
    recovered_at: float
    recovered_after: int
    """Trajectories from the change to the recovery."""
    recovered_seconds: float


class OpenShift(BaseModel):
    """A shift that has not been recovered from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str
    trajectories: int
    before: float
    changed_index: int
    """Number of rewards seen when the change happened."""
    changed_at: float


class DriftState(BaseModel):
    """All that the monitor needs to go on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seen: int = 0
    rewards: tuple[float, ...] = ()
    """The last ones, of which `fresh` came after the last shift."""
    residuals: tuple[float | None, ...] = ()
    times: tuple[float, ...] = ()
    fresh: int = 0
    open_shift: OpenShift | None = None


class DriftMonitor:
    """Fed one trajectory at a time, in the order of training; says what that revealed."""

    def __init__(self, settings: DriftSettings, state: DriftState | None = None) -> None:
        state = state or DriftState()
        self._settings = settings
        self._seen = state.seen
        self._rewards = list(state.rewards)
        self._residuals = list(state.residuals)
        self._times = list(state.times)
        self._fresh = state.fresh
        self._open = state.open_shift

    @property
    def state(self) -> DriftState:
        return DriftState(
            seen=self._seen,
            rewards=tuple(self._rewards),
            residuals=tuple(self._residuals),
            times=tuple(self._times),
            fresh=self._fresh,
            open_shift=self._open,
        )

    @property
    def rewards_since_shift(self) -> list[float]:
        """The rewards after the one that revealed the last shift; the newest `WINDOW` of them."""
        return self._rewards[len(self._rewards) - self._fresh :]

    @property
    def lowest_reward(self) -> float:
        """Of the rewards that are remembered. Raises ValueError where there is none."""
        return min(self._rewards)

    def observe(self, reward: float, residual: float | None, at: float) -> list[Shift | Recovery]:
        """One rated trajectory: its reward, reward minus the value expected (None while the value model warms up),
        and when it was rated (Unix seconds)."""
        if not self._settings.enabled:
            return []
        keep = max(WINDOW, self._settings.recovery_window)
        self._seen += 1
        self._fresh = min(self._fresh + 1, WINDOW)
        self._rewards = [*self._rewards[-keep + 1 :], reward]
        self._residuals = [*self._residuals[-keep + 1 :], residual]
        self._times = [*self._times[-keep + 1 :], at]
        events: list[Shift | Recovery] = [event for event in (self._find_shift(at),) if event is not None]
        recovery = self._find_recovery(at)
        return [*events, recovery] if recovery is not None else events

    def _find_shift(self, at: float) -> Shift | None:
        if self._fresh < self._settings.min_samples:
            return None
        stream, fall = REWARD, find_fall(self._rewards[-self._fresh :])
        if not self._counts(fall):
            residuals = [residual for residual in self._residuals[-self._fresh :] if residual is not None]
            stream, fall = RESIDUAL, find_fall(residuals)
            # A value model that learns to expect more lowers the residual too, but not below zero.
            if not self._counts(fall) or (fall is not None and fall.after > -self._settings.delta):
                return None
            assert fall is not None
            # Or the values learn to expect more in the same window: the most likely fall of the residual is then not
            # where users changed their mind, and the reward did not fall there.
            split = len(self._rewards) - fall.since
            if self._level_before(split) - fmean(self._rewards[split:]) < self._settings.delta:
                return None
        assert fall is not None
        # In terms of the reward, whichever stream showed it.
        split = len(self._rewards) - fall.since
        before = self._level_before(split)
        self._open = OpenShift(
            stream=stream,
            trajectories=self._seen,
            before=before,
            changed_index=self._seen - fall.since,
            changed_at=self._times[split],
        )
        self._fresh = 0
        evidence = {
            "delay": float(fall.since),
            "changed_at": self._times[split],
            "standard_errors": fall.standard_errors,
            "stream_before": fall.before,
            "stream_after": fall.after,
        }
        return Shift(
            stream=stream,
            trajectories=self._seen,
            detected_at=at,
            before=before,
            after=fmean(self._rewards[split:]),
            evidence=evidence,
        )

    def _level_before(self, split: int) -> float:
        return fmean(self._rewards[max(0, split - self._settings.recovery_window) : split])

    def _counts(self, fall: "Fall | None") -> bool:
        return (
            fall is not None
            and fall.standard_errors >= self._settings.threshold
            and fall.before - fall.after >= self._settings.delta
        )

    def _find_recovery(self, at: float) -> Recovery | None:
        shift = self._open
        window = self._settings.recovery_window
        if shift is None or self._seen - shift.changed_index < window:
            return None
        # For a level above 0 that is RECOVERED times the level; one below 0 may be missed by as much.
        if fmean(self._rewards[-window:]) < shift.before - (1.0 - RECOVERED) * abs(shift.before):
            return None
        self._open = None
        return Recovery(
            stream=shift.stream,
            trajectories=shift.trajectories,
            recovered_at=at,
            recovered_after=self._seen - shift.changed_index,
            recovered_seconds=at - shift.changed_at,
        )


@dataclass(frozen=True, slots=True)
class Fall:
    """The most likely fall of the mean in a sequence."""

    since: int
    """Values after it."""
    before: float
    after: float
    standard_errors: float
    """The fall in units of its standard error."""


def find_fall(values: Sequence[float]) -> Fall | None:
    """The split k of `values` with the largest ``√(k (n−k) / n) · (mean before k − mean from k on)``, the most likely
    one for equal variances. At least `MIN_BEFORE` and `MIN_AFTER` values lie on its sides, else None.
    """
    count = len(values)
    if count < MIN_BEFORE + MIN_AFTER:
        return None
    total, squares = math.fsum(values), math.fsum(value * value for value in values)
    before = math.fsum(values[: MIN_BEFORE - 1])
    best: tuple[float, int, float, float] = (-math.inf, 0, 0.0, 0.0)
    for split in range(MIN_BEFORE, count - MIN_AFTER + 1):
        before += values[split - 1]
        left, right = before / split, (total - before) / (count - split)
        score = math.sqrt(split * (count - split) / count) * (left - right)
        if score > best[0]:
            best = (score, split, left, right)
    score, split, left, right = best
    variance = (squares - split * left * left - (count - split) * right * right) / count
    return Fall(count - split, left, right, score / math.sqrt(max(variance, MIN_VARIANCE)))
