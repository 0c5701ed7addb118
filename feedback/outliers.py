"""Values so far from what a metric usually says that they count for nothing until somebody has looked at them.

A metric with both bounds cannot be moved far by one value, so only those without are watched. Far is told by the
median and the middle half of the last values, which a few wild ones do not move.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median, pstdev, quantiles

from feedback.settings import FeedbackSettings

QUARANTINED = "quarantined"
VETTED = "vetted"
"""Released from quarantine, and about to be given its place."""
WINDOW = 512
LEAST = 32
"""Values without which nothing is unusual."""
_IQR_OF_NORMAL = 1.349


def is_far(value: float, usual: Sequence[float], deviations: float) -> bool:
    """Whether `value` is an outlier of `usual`. Pure."""
    if len(usual) < LEAST:
        return False
    middle = median(usual)
    first, _, third = quantiles(usual, n=4)
    # Where most say the same, the few others are what varies.
    scale = (third - first) / _IQR_OF_NORMAL or pstdev(usual)
    return scale > 0 and abs(value - middle) > deviations * scale


class OutlierWatch:
    """Remembers the last values of each metric that is watched."""

    def __init__(self, settings: FeedbackSettings) -> None:
        self._deviations = settings.outlier_deviations
        unbounded = [
            name
            for name, metric in settings.metrics.items()
            if metric.type == "float" and (metric.minimum is None or metric.maximum is None)
        ]
        self._usual = {name: deque[float](maxlen=WINDOW) for name in unbounded if self._deviations is not None}

    @property
    def metrics(self) -> list[str]:
        """Those that are watched."""
        return list(self._usual)

    def learn(self, metric: str, values: Iterable[float]) -> None:
        """Values that were taken, oldest first."""
        if metric in self._usual:
            self._usual[metric].extend(values)

    def is_outlier(self, metric: str, value: float) -> bool:
        usual = self._usual.get(metric)
        return usual is not None and self._deviations is not None and is_far(value, usual, self._deviations)
