"""A trajectory against the others of its group."""

from collections.abc import Sequence
from statistics import stdev

from feedback.schemas import Trajectory
from online_rl.baselines.baseline import STD_OFFSET, BaselineState, differences
from online_rl.groups import find_groups


class GroupBaseline:
    """The mean reward of the trajectory's group; `scaled` divides by the group's standard deviation too (GRPO).

    ``A = r − mean(r)`` or ``(r − mean(r)) / (std(r) + 1e-4)``, std with n − 1. All rewards equal: exactly 0. Where
    there is no group, the batch is the group.
    """

    def __init__(self, *, scaled: bool) -> None:
        self._scaled = scaled

    def advantages(self, trajectories: Sequence[Trajectory]) -> list[float]:
        found = [0.0] * len(trajectories)
        for members in find_groups(trajectories):
            rewards = [trajectories[index].reward for index in members]
            scale = 1.0 / (stdev(rewards) + STD_OFFSET) if self._scaled and len(rewards) > 1 else 1.0
            for index, difference in zip(members, differences(rewards), strict=True):
                found[index] = scale * difference
        return found

    def state(self) -> BaselineState:
        return {}

    def load(self, state: BaselineState) -> None:
        if state:
            raise TypeError("the state of a baseline that remembers was given to one that does not")
