"""The level from before a shift, and whether it is reached again. Pure."""

from collections.abc import Sequence
from statistics import fmean

from online_rl.drift_events import OpenShift, Recovery, Shift

RECOVERED = 0.9
"""Share of the level before a shift at which it counts as recovered."""


def level(values: Sequence[float], split: int, window: int) -> float:
    """Mean of at most `window` values before `split`."""
    return fmean(values[max(0, split - window) : split])


def open_shift(shift: Shift, changed_index: int) -> OpenShift:
    """`shift` as one to recover from; `changed_index`: the stream's own values seen when the change happened."""
    return OpenShift(
        stream=shift.stream,
        cohort=shift.cohort,
        trajectories=shift.trajectories,
        before=shift.before,
        changed_index=changed_index,
        changed_at=shift.evidence["changed_at"],
    )


def find_recovery(
    shift: OpenShift | None, values: Sequence[float], seen: int, at: float, window: int
) -> Recovery | None:
    """Whether the mean of the last `window` values, of `seen` in all, is back at `RECOVERED` of its level before."""
    if shift is None or seen - shift.changed_index < window:
        return None
    # For a level above 0 that is RECOVERED times the level; one below 0 may be missed by as much.
    if fmean(values[-window:]) < shift.before - (1.0 - RECOVERED) * abs(shift.before):
        return None
    return Recovery(
        stream=shift.stream,
        cohort=shift.cohort,
        trajectories=shift.trajectories,
        recovered_at=at,
        recovered_after=seen - shift.changed_index,
        recovered_seconds=at - shift.changed_at,
    )
