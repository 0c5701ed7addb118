"""Another mix of prompts and users: the shares of the cohorts changed, whatever they earn. Pure."""

from collections.abc import Sequence
from statistics import fmean

from online_rl.change_points import MixChange, find_mix_change
from online_rl.cohorts import name_cohort
from online_rl.drift_events import MIX, Shift
from online_rl.drift_recovery import level
from online_rl.drift_window import DriftWindow
from online_rl.settings import DriftSettings

MIX_STEP = 4
"""Trajectories from one look at the mix to the next; it costs more than the others and is in no hurry."""


def find_mix_shift(
    window: DriftWindow, fresh: int, active: Sequence[str], threshold: float, settings: DriftSettings
) -> tuple[Shift, int] | None:
    """The clearest change among the newest `fresh` trajectories, and how many came since.

    `active`: the dimensions that are looked at; `threshold` in standard errors.
    """
    if window.seen % MIX_STEP or fresh < settings.min_samples:
        return None
    best: tuple[MixChange, str, int] | None = None
    for name in active:
        labels = window.labels[name][-fresh:]
        known = [index for index, label in enumerate(labels) if label]
        change = find_mix_change([labels[index] for index in known])
        if (
            change is not None
            and change.standard_errors >= threshold
            and change.distance >= settings.mix_distance
            and (best is None or change.standard_errors > best[0].standard_errors)
        ):
            best = change, name, len(labels) - known[-change.since]
    if best is None:
        return None
    change, name, since = best
    return _describe(window, change, name, since, threshold, settings.recovery_window), since


def _describe(
    window: DriftWindow, change: MixChange, dimension: str, since: int, threshold: float, recovery_window: int
) -> Shift:
    split = len(window.rewards) - since
    return Shift(
        stream=MIX,
        cohort=name_cohort(dimension, change.label or "(rare)"),
        cause="prompt_mix",
        trajectories=window.seen,
        detected_at=window.times[-1],
        before=level(window.rewards, split, recovery_window),
        after=fmean(window.rewards[split:]),
        evidence={
            "delay": float(since),
            "changed_at": window.times[split],
            "standard_errors": change.standard_errors,
            "threshold": threshold,
            "share_before": change.share_before,
            "share_after": change.share_after,
            "distance": change.distance,
        },
    )
