"""The one shape of all baselines: trajectories of a whole batch → one advantage for each."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Protocol

from feedback.schemas import Trajectory

BaselineState = dict[str, Any]
"""JSON-able; {} for a baseline that remembers nothing."""

STD_OFFSET = 1e-4
"""Added to a standard deviation before dividing by it, as GRPO's implementations do."""


class Baseline(Protocol):
    """How good a trajectory was, against what was to be expected."""

    def advantages(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """One for each trajectory of a whole batch, in order; learns their rewards."""
        ...

    def state(self) -> BaselineState: ...

    def load(self, state: BaselineState) -> None:
        """Go back to what `state` returned. Raises KeyError or TypeError where it is another kind's."""
        ...


def differences(values: Sequence[float]) -> list[float]:
    """Each value minus their mean; exactly 0 where all are equal, which rounding would else miss."""
    mean = values[0] if min(values) == max(values) else fmean(values)
    return [value - mean for value in values]
