"""A trajectory against the rewards that its own prompt had lately."""

from collections.abc import Sequence
from statistics import fmean

from feedback.schemas import Trajectory
from online_rl.baselines.baseline import BaselineState
from online_rl.baselines.prompts import RecentPrompts, prompt_key


class PromptWindowBaseline:
    """The mean of the last `size` rewards of the same prompt; of the batch, for a prompt that is new."""

    def __init__(self, size: int, max_prompts: int) -> None:
        self._size = size
        self._prompts = RecentPrompts(max_prompts)

    def advantages(self, trajectories: Sequence[Trajectory]) -> list[float]:
        rewards = [trajectory.reward for trajectory in trajectories]
        keys = [prompt_key(trajectory) for trajectory in trajectories]
        unknown = fmean(rewards)
        known = {key: fmean(past) for key in set(keys) if (past := self._prompts.get(key))}
        for key, reward in zip(keys, rewards, strict=True):
            self._prompts.put(key, [*(self._prompts.get(key) or []), reward][-self._size :])
        return [reward - known.get(key, unknown) for key, reward in zip(keys, rewards, strict=True)]

    def state(self) -> BaselineState:
        return {"prompts": self._prompts.items()}

    def load(self, state: BaselineState) -> None:
        self._prompts.replace((key, past[-self._size :]) for key, past in state["prompts"])
