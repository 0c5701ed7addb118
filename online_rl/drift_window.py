"""The latest trajectories of all traffic: what each earned, when, and which cohorts it is of. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

MAX_DIMENSIONS = 12


@dataclass(frozen=True, slots=True)
class DriftWindow:
    """Sequences of one length, the newest trajectory last. Immutable; one more trajectory makes another window."""

    seen: int
    """Trajectories so far, with those that are forgotten."""
    rewards: tuple[float, ...]
    residuals: tuple[float | None, ...]
    """Reward minus the value expected; None where nothing was expected yet."""
    times: tuple[float, ...]
    """Unix seconds."""
    labels: Mapping[str, tuple[str, ...]]
    """Dimension → the cohort of each trajectory, empty where unknown."""

    def add(
        self, reward: float, residual: float | None, at: float, labels: Mapping[str, str], keep: int
    ) -> "DriftWindow":
        """With one more trajectory, of the cohorts `labels` (dimension → cohort); `keep` of them are remembered.

        A dimension is remembered as long as one of them has a cohort in it. Beyond `MAX_DIMENSIONS` a new one is not.
        """
        known = dict(self.labels)
        for name, label in labels.items():
            if label and name not in known and len(known) < MAX_DIMENSIONS:
                known[name] = ("",) * len(self.rewards)
        longer = {name: (*found[-keep + 1 :], labels.get(name, "")) for name, found in known.items()}
        return DriftWindow(
            seen=self.seen + 1,
            rewards=(*self.rewards[-keep + 1 :], reward),
            residuals=(*self.residuals[-keep + 1 :], residual),
            times=(*self.times[-keep + 1 :], at),
            labels={name: found for name, found in longer.items() if any(found)},
        )

    def without(self, dimension: str) -> "DriftWindow":
        return replace(self, labels={name: found for name, found in self.labels.items() if name != dimension})
