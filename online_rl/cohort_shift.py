"""A change of taste that the rest of the traffic does not share, or that one metric of all traffic shows. Pure."""

from statistics import fmean

from online_rl.cohort_stream import CohortStream, find_cohort_fall
from online_rl.detectors import Detector
from online_rl.drift_events import Shift
from online_rl.drift_recovery import level, open_shift
from online_rl.settings import DriftSettings


def find_cohort_shift(
    known: CohortStream, trajectories: int, threshold: float, detector: Detector, settings: DriftSettings
) -> tuple[CohortStream, Shift | None]:
    """The shift that the newest value revealed, if any, and the stream from there on.

    `trajectories`: rewards seen so far, of all traffic; `threshold` in standard errors.
    """
    values = known.values
    if len(values) < settings.min_samples or values[-1] > fmean(values):
        return known, None
    rest: dict[str, float] = {}
    if known.cohort:
        cohort_fall = find_cohort_fall(known.entries, threshold, detector)
        fall = None if cohort_fall is None else cohort_fall.fall
        if cohort_fall is not None:
            rest = {"rest_before": cohort_fall.rest_before, "rest_after": cohort_fall.rest_after}
    else:
        fall = detector(values, threshold)
    if fall is None or fall.before - fall.after < settings.delta:
        return known, None
    split = len(values) - fall.since
    shift = Shift(
        stream=known.stream,
        cohort=known.cohort,
        trajectories=trajectories,
        detected_at=known.entries[-1].at,
        before=level(values, split, settings.recovery_window),
        after=fall.after,
        evidence={
            "delay": float(fall.since),
            "changed_at": known.entries[split].at,
            "standard_errors": fall.standard_errors,
            "threshold": threshold,
            "stream_before": fall.before,
            "stream_after": fall.after,
            **rest,
        },
    )
    opened = open_shift(shift, known.seen - fall.since)
    return known.model_copy(update={"open_shift": opened, "entries": known.entries[split:]}), shift
