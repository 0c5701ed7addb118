"""What a task is: episodes whose answers are checked exactly, and an expert to learn from first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol


class Episode(Protocol):
    """One attempt: a prompt, then actions of the policy and observations of the environment in turn."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Tokens that open the episode."""
        ...

    def observe(self, action: Sequence[int]) -> tuple[int, ...] | None:
        """Take one action (it ends with END unless it was cut off); the observation, or None where the episode ends."""
        ...

    @property
    def reward(self) -> float:
        """0 or 1, once the episode has ended; 0 before."""
        ...

    def expert(self, rng: Random, error_rate: float) -> tuple[int, ...]:
        """The next action of an expert who errs with probability `error_rate`."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """A family of episodes."""

    name: str
    make: Callable[[Random], Episode]
    """A new episode; everything random about it, its environment's answers included, is drawn from the generator."""
    max_action: int
    """Tokens after which an action is cut off; it then counts as malformed."""
    max_turns: int
    """Actions after which the episode ends with reward 0."""
    max_length: int
    """No episode is longer, in tokens."""
    error_rate: float
    """Of the expert whose demonstrations the warm start learns: it sets where the rewards begin."""


def demonstrate(task: Task, rng: Random, error_rate: float) -> tuple[list[int], list[int], float]:
    """Tokens, action mask and reward of one episode played by the expert."""
    episode = task.make(rng)
    tokens, mask = list(episode.prompt), [0] * len(episode.prompt)
    for _ in range(task.max_turns):
        action = episode.expert(rng, error_rate)
        tokens += action
        mask += [1] * len(action)
        observation = episode.observe(action)
        if observation is None:
            break
        tokens += observation
        mask += [0] * len(observation)
    return tokens, mask, episode.reward
