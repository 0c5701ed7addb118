"""Asynchrony in one process: trajectories of old versions, as they would come from the feedback service.

After every policy update `publish` keeps a copy of the weights. `collect` draws for each trajectory how old the version
is that begins it, samples it from the copies, and returns what the service would have stored: exact log-probabilities
of the sampling versions, and spans that name them.
"""

from collections.abc import Sequence
from itertools import groupby
from random import Random

import torch

from benchmarks.papers.lags import MAX_LAG, Lag
from benchmarks.papers.sampler import Sample, Sampler, Weights, draw_episodes
from benchmarks.papers.tasks import Task
from feedback.schemas import Trajectory
from online_rl.policy_model import Policy
from serving.schemas import VersionSpan


class Simulator:
    """The weights of the current version and of the 24 before it, and all randomness of sampling."""

    def __init__(self, policy: Policy, max_length: int, seed: int) -> None:
        """`max_length`: tokens of the longest episode. Publishes the policy as version 0."""
        self.version = -1
        self.weights: dict[int, Weights] = {}
        self._policy = policy
        # The names of transformers, without the adapters: PEFT hides the pristine layer behind `base_layer`.
        self._pristine = {
            name.replace(".base_layer", ""): tensor
            for name, tensor in policy.base.state_dict().items()
            if "lora_" not in name
        }
        self._sampler = Sampler(policy.base.config, max_length)
        self._rng = Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._count = 0
        self.publish()

    def publish(self) -> int:
        """Keep a copy of the policy as the next version, and forget what is more than 24 versions old."""
        self.version += 1
        self.weights[self.version] = {**self._pristine, **self._policy.served_weights(torch.float32)}
        self.weights.pop(self.version - MAX_LAG - 1, None)
        return self.version

    def collect(self, task: Task, count: int, lag: Lag, group_size: int = 1) -> list[Trajectory]:
        """`count` trajectories; each `group_size` of them answer the same question and share a group id."""
        episodes = draw_episodes(task, self._rng, count, group_size)
        versions = [lag.draw_versions(self._rng, self.version, task.max_turns) for _ in episodes]
        samples = self._sampler.sample(task, episodes, versions, self.weights, self._generator)
        return [self._make_trajectory(sample, group_size) for sample in samples]

    def _make_trajectory(self, sample: Sample, group_size: int) -> Trajectory:
        number, self._count = self._count, self._count + 1
        return Trajectory(
            trajectory_id=f"t{number}",
            episode_id=f"e{number}",
            inference_ids=(f"i{number}",),
            token_ids=tuple(sample.tokens),
            action_mask=tuple(sample.mask),  # pyright: ignore[reportArgumentType]: zeros and ones
            behavior_logprobs=tuple(sample.logprobs),
            spans=find_spans(sample.versions),
            reward=sample.reward,
            group_id=f"g{number // group_size}" if group_size > 1 else None,
            group_size=group_size,
            generated_at=float(number),
            rated_at=float(number),
            released_at=float(number),
        )


def find_spans(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """Runs of equal versions: ``[3, 3, 5]`` → 0..2 by version 3, 2..3 by version 5."""
    spans: list[VersionSpan] = []
    start = 0
    for version, run in groupby(versions):
        end = start + len(list(run))
        spans.append(VersionSpan(start=start, end=end, version=version))
        start = end
    return tuple(spans)
