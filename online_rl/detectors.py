"""What finds a fall in a window of values, behind one interface: our scan, and two of river's detectors.

A detector is a function of the window, so the window is all the state there is, and any of them goes on exactly where a
checkpoint stopped. river's are fed the window anew each time. Measured against each other by ``benchmarks.drift``; see
docs/adr/0071-a-fall-must-stand-out.md for why the scan is the default.
"""

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

from online_rl.change_points import MIN_AFTER, MIN_BEFORE, Fall, find_fall

Detector = Callable[[Sequence[float], float], Fall | None]
"""(values, threshold in standard errors) → the fall that stands out, or None."""
DRIFT_ALLOWED = 0.1
"""δ of Page-Hinkley: the fall that it lets pass."""


class DetectorMissing(RuntimeError):
    """The chosen detector needs a package that is not installed."""


def scan(values: Sequence[float], threshold: float, wander: float = 0.0) -> Fall | None:
    """The most likely fall, where it stands out against one by `wander`."""
    fall = find_fall(values, wander)
    return fall if fall is not None and fall.standard_errors >= threshold else None


def make_detector(name: str, wander: float) -> Detector:
    """`scan`, `adwin` or `page_hinkley`; only the first knows what it is to `wander`. Raises DetectorMissing."""
    if name == "scan":
        return lambda values, threshold: scan(values, threshold, wander)
    try:
        from river import drift
    except ImportError as error:
        raise DetectorMissing(f"drift.detector = {name} needs the package river; install it, or set `scan`") from error
    if name == "adwin":
        return lambda values, threshold: _feed(drift.ADWIN(delta=_tail(threshold), clock=1), values)
    return lambda values, threshold: _feed(_page_hinkley(drift, threshold), values)


def _tail(threshold: float) -> float:
    """Two-sided tail of the normal distribution: the false-alarm rate that ADWIN takes."""
    return 2.0 * NormalDist().cdf(-threshold)


def _page_hinkley(drift: Any, threshold: float) -> Any:
    """An excursion of λ against a slope of −δ has the chance ``exp(−2δλ/σ²)`` (Siegmund, Sequential Analysis, 1985);
    with σ² = ¼, the most for values in 0 … 1, equal to the normal tail's ``exp(−threshold²/2)``."""
    return drift.PageHinkley(
        min_instances=MIN_BEFORE,
        delta=DRIFT_ALLOWED,
        threshold=threshold**2 / (16.0 * DRIFT_ALLOWED),
        alpha=1.0,
        mode="down",
    )


def _feed(detector: Any, values: Sequence[float]) -> Fall | None:
    """The last alarm of a falling mean in `values`, at its most likely place; None without one."""
    if len(values) < MIN_BEFORE + MIN_AFTER:
        return None
    alarm: int | None = None
    for index, value in enumerate(values):
        detector.update(value)
        if detector.drift_detected:
            alarm = index
    fall = find_fall(values)
    if alarm is None or fall is None or alarm < len(values) - fall.since:
        return None
    return fall
