"""All cohorts and metrics that are watched: each value goes to its own, and what was not seen for long is forgotten."""

from collections.abc import Mapping, Sequence

from online_rl.cohort_shift import find_cohort_shift
from online_rl.cohort_stream import CohortStream, Entry
from online_rl.detectors import Detector
from online_rl.drift_events import REWARD, Recovery, Shift
from online_rl.drift_recovery import find_recovery
from online_rl.settings import DriftSettings

MAX_METRICS = 8


class CohortStreams:
    """The reward and each metric in each cohort, and each metric in all traffic."""

    def __init__(
        self,
        settings: DriftSettings,
        detector: Detector,
        streams: Sequence[CohortStream] = (),
        totals: Mapping[str, tuple[int, float]] | None = None,
    ) -> None:
        """`streams` and `totals` are those of a restored monitor."""
        self._settings = settings
        self._detector = detector
        self._streams = {(one.stream, one.cohort): one for one in streams}
        self._totals = dict(totals or {})

    @property
    def streams(self) -> tuple[CohortStream, ...]:
        """Seen last comes last."""
        return tuple(self._streams.values())

    @property
    def totals(self) -> dict[str, tuple[int, float]]:
        """Reward and each metric → how many there were, and their sum."""
        return dict(self._totals)

    def observe(
        self, stream: str, value: float, at: float, cohorts: Sequence[str], trajectories: int, threshold: float
    ) -> list[Shift | Recovery]:
        """One more value of the reward or of a metric: in its cohorts, and of a metric in all traffic.

        `at`: Unix seconds; `trajectories`: rewards seen so far, of all traffic; `threshold` in standard errors.
        """
        count, total = self._totals.get(stream, (0, 0.0))
        self._totals[stream] = count + 1, total + value
        entry = Entry(value, at, count + 1, total + value)
        events: list[Shift | Recovery] = []
        for cohort in [*cohorts, *([] if stream == REWARD else [""])]:
            known = self._streams.pop((stream, cohort), CohortStream(stream=stream, cohort=cohort)).add(entry)
            known, shift = find_cohort_shift(known, trajectories, threshold, self._detector, self._settings)
            recovery = find_recovery(known.open_shift, known.values, known.seen, at, self._settings.recovery_window)
            if recovery is not None:
                known = known.model_copy(update={"open_shift": None})
            events += [event for event in (shift, recovery) if event is not None]
            self._streams[stream, cohort] = known
        for name in list(self._streams)[: max(0, len(self._streams) - self._settings.max_cohorts - MAX_METRICS)]:
            del self._streams[name]
        return events

    def restart(self, at: float) -> None:
        """Forget the values from before `at`; shifts that are open stay so."""
        self._streams = {name: one.since(at) for name, one in self._streams.items()}
