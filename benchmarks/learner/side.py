"""What both sides share: the task, how a side is timed, and what it reports."""

import os
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from feedback.schemas import Trajectory

RANK, ALPHA, LEARNING_RATE, WEIGHT_DECAY = 8, 16.0, 1e-4, 0.0
EPSILON_LOW, EPSILON_HIGH = 0.2, 0.28
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One side's steps."""

    side: str
    micro_batch: int
    """Trajectories (TRL) or distinct tokens (ours) in one forward pass."""
    seconds: list[float]
    """Of each timed step."""
    tokens: int
    """Real tokens in a batch, prompts and answers: the same for both sides."""
    action_tokens: int
    computed_tokens: int
    """Tokens that one step's forward passes run over: padded ones, or distinct ones."""
    peak_rss: int
    """Bytes, of the whole process."""
    losses: list[float]
    """Of all steps, the untimed ones first."""
    grad_norms: list[float]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / min(self.seconds)

    def report(self) -> dict[str, object]:
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


def set_up() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("BENCHMARK_THREADS", len(os.sched_getaffinity(0)))))


def choose_advantages(trajectories: Sequence[Trajectory]) -> list[float]:
    """One a trajectory, as GRPO has them: (reward − mean) / standard deviation; ±1 where all rewards are equal."""
    rewards = torch.tensor([trajectory.reward for trajectory in trajectories])
    if rewards.std() == 0:
        rng = random.Random(0)
        return [rng.choice((-1.0, 1.0)) for _ in trajectories]
    return ((rewards - rewards.mean()) / (rewards.std() + 1e-4)).tolist()


def measure(step: Callable[[], tuple[float, float]], *, steps: int, warm_up: int) -> tuple[list[float], list[tuple]]:
    """Seconds of each timed step, and (loss, gradient norm) of all."""
    seconds: list[float] = []
    found: list[tuple] = []
    for number in range(warm_up + steps):
        began = time.perf_counter()
        found.append(step())
        if number >= warm_up:
            seconds.append(time.perf_counter() - began)
    return seconds, found


def peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
