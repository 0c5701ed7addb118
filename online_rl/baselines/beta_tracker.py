"""A trajectory against a belief about its prompt that forgets."""

from collections.abc import Sequence
from statistics import pstdev

from feedback.schemas import Trajectory
from online_rl.baselines.baseline import STD_OFFSET, BaselineState, differences
from online_rl.baselines.prompts import RecentPrompts, prompt_key


class BetaTracker:
    """A Beta belief of each prompt's success rate, which forgets (single-stream policy optimisation, 2509.13232).

    ``v = α/(α+β)`` before the reward r is learned; then ``α ← ρα + r``, ``β ← ρβ + (1 − r)``. The advantages
    ``r − v`` are brought to mean 0 and standard deviation 1 over the batch.

    Decided: ρ is constant (the paper moves it between 0.875 and 0.96 with the policy's divergence since the prompt
    was last seen, which nobody here has measured), and a new prompt starts at Beta(1, 1) (the paper samples eight
    answers to each prompt first, which live traffic cannot). A reward outside 0..1 leaves no Beta distribution, but v
    stays what it is: a discounted mean.
    """

    def __init__(self, discount: float, max_prompts: int) -> None:
        self._discount = discount
        self._prompts = RecentPrompts(max_prompts)

    def advantages(self, trajectories: Sequence[Trajectory]) -> list[float]:
        keys = [prompt_key(trajectory) for trajectory in trajectories]
        surprises = [t.reward - self._expected(key) for key, t in zip(keys, trajectories, strict=True)]
        for key, trajectory in zip(keys, trajectories, strict=True):
            alpha, beta = self._belief(key)
            reward = trajectory.reward
            self._prompts.put(key, [self._discount * alpha + reward, self._discount * beta + 1.0 - reward])
        scale = 1.0 / (pstdev(surprises) + STD_OFFSET)
        return [scale * difference for difference in differences(surprises)]

    def _expected(self, key: str) -> float:
        alpha, beta = self._belief(key)
        return alpha / (alpha + beta)

    def _belief(self, key: str) -> list[float]:
        return self._prompts.get(key) or [1.0, 1.0]

    def state(self) -> BaselineState:
        return {"beliefs": self._prompts.items()}

    def load(self, state: BaselineState) -> None:
        self._prompts.replace(state["beliefs"])
