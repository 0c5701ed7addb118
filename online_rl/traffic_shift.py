"""A fall of what all traffic earns, and what it is put down to: users changed their mind, or the mix did. Pure.

It is sought in the reward and in the residual r − V (how much worse than expected an answer was rated). Where some
cohorts clearly stayed, the fall is the others' own and none of all traffic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from online_rl.attribution import Attribution, attribute
from online_rl.change_points import Fall, find_fall
from online_rl.detectors import Detector
from online_rl.drift_events import RESIDUAL, REWARD, Shift
from online_rl.drift_recovery import level
from online_rl.drift_window import DriftWindow
from online_rl.settings import DriftSettings


def find_traffic_shift(
    window: DriftWindow,
    fresh: int,
    active: Sequence[str],
    mix_since: int,
    threshold: float,
    detector: Detector,
    settings: DriftSettings,
) -> tuple[Shift, int] | None:
    """The shift that the newest `fresh` trajectories show, and how many came since what caused it.

    `active`: the dimensions that may explain it; `mix_since`: trajectories since the mix changed last, 0: it did not;
    `threshold` in standard errors.
    """
    if fresh < settings.min_samples:
        return None
    rewards = window.rewards[-fresh:]
    # A reward that is no lower than the others makes no fall likelier.
    if rewards[-1] > fmean(rewards):
        return None
    stream, fall = REWARD, detector(rewards, threshold)
    if fall is None or fall.before - fall.after < settings.delta:
        stream, fall = RESIDUAL, _find_residual_fall(window, fresh, threshold, detector, settings.delta)
        if fall is None:
            return None
    labels = {name: window.labels[name][-fresh:] for name in active}
    cause, since = _attribute(rewards, labels, fall.since, mix_since)
    if cause.is_of_some and not cause.is_mix:
        return None
    return _describe(window, stream, fall, threshold, cause, settings.recovery_window), since


def _find_residual_fall(
    window: DriftWindow, fresh: int, threshold: float, detector: Detector, delta: float
) -> Fall | None:
    residuals = [residual for residual in window.residuals[-fresh:] if residual is not None]
    fall = detector(residuals, threshold)
    # A value model that learns to expect more lowers the residual too, but not below zero.
    if fall is None or fall.before - fall.after < delta or fall.after > -delta:
        return None
    # Or the values learn to expect more in the same window: the most likely fall of the residual is then not
    # where users changed their mind. That is where the reward fell, if less clearly.
    seen = find_fall(window.rewards[-fresh:])
    if seen is None or seen.before - seen.after < delta or 1.5 * seen.standard_errors < threshold:
        return None
    return replace(fall, since=seen.since)


def _attribute(
    rewards: Sequence[float], labels: Mapping[str, Sequence[str]], since: int, mix_since: int
) -> tuple[Attribution, int]:
    """Of the fall, and how long it lasts. Where the mix changed in the same window, the fall may lie behind that by
    chance; then it is attributed from there."""
    cause = attribute(rewards, len(rewards) - since, labels)
    if cause.is_mix or not 0 < mix_since < len(rewards):
        return cause, since
    other = attribute(rewards, len(rewards) - mix_since, labels)
    return (other, mix_since) if other.is_mix else (cause, since)


def _describe(
    window: DriftWindow, stream: str, fall: Fall, threshold: float, cause: Attribution, recovery_window: int
) -> Shift:
    """In terms of the reward, whichever stream showed it."""
    split = len(window.rewards) - fall.since
    return Shift(
        stream=stream,
        cause="prompt_mix" if cause.is_mix else "taste",
        trajectories=window.seen,
        detected_at=window.times[-1],
        before=level(window.rewards, split, recovery_window),
        after=fmean(window.rewards[split:]),
        evidence={
            "delay": float(fall.since),
            "changed_at": window.times[split],
            "standard_errors": fall.standard_errors,
            "threshold": threshold,
            "stream_before": fall.before,
            "stream_after": fall.after,
            "mix_share": cause.mix_share,
            "stayed_share": cause.stayed_share,
        },
    )
