"""A trajectory against all rewards before it, of whatever prompt."""

from collections import deque
from collections.abc import Sequence
from statistics import fmean

from feedback.schemas import Trajectory
from online_rl.baselines.baseline import BaselineState


class WindowBaseline:
    """The mean of the last `size` rewards, of whatever prompt (SAO's control in its online experiment)."""

    def __init__(self, size: int) -> None:
        self._rewards: deque[float] = deque(maxlen=size)

    def advantages(self, trajectories: Sequence[Trajectory]) -> list[float]:
        rewards = [trajectory.reward for trajectory in trajectories]
        expected = fmean(self._rewards or rewards)
        self._rewards.extend(rewards)
        return [reward - expected for reward in rewards]

    def state(self) -> BaselineState:
        return {"rewards": list(self._rewards)}

    def load(self, state: BaselineState) -> None:
        self._rewards = deque(state["rewards"], maxlen=self._rewards.maxlen)


class EmaBaseline:
    """An exponential moving average of all rewards: ``b ← d b + (1 − d) r`` for each reward."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._mean: float | None = None

    def advantages(self, trajectories: Sequence[Trajectory]) -> list[float]:
        rewards = [trajectory.reward for trajectory in trajectories]
        expected = fmean(rewards) if self._mean is None else self._mean
        mean = expected
        for reward in rewards:
            mean = self._decay * mean + (1.0 - self._decay) * reward
        self._mean = mean
        return [reward - expected for reward in rewards]

    def state(self) -> BaselineState:
        return {"mean": self._mean}

    def load(self, state: BaselineState) -> None:
        self._mean = state["mean"]
