"""A batch of trajectories as tensors: packs for the models, and what belongs to their action tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feedback.schemas import Trajectory
from online_rl.advantages import compute_returns, place_rewards
from online_rl.packing import Pack, TokenSequence, pack_sequences


@dataclass(frozen=True, slots=True)
class TrainingPack:
    """A `Pack` of ``B'`` trajectories with ``T`` action tokens, and their rewards and log-probabilities."""

    pack: Pack
    behavior_logprobs: Tensor | None
    """float32 ``[T]``; None where one trajectory of the pack has none."""
    rewards: Tensor
    """float32 ``[B']``."""
    token_rewards: Tensor
    """float32 ``[T]``: the reward on the last action token, 0 before."""
    returns: Tensor
    """float32 ``[T]``: Monte-Carlo returns."""
    groups: Tensor
    """long ``[B']``."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All packs of one update."""

    packs: tuple[TrainingPack, ...]
    total_tokens: int
    """Action tokens."""
    total_trajectories: int


def make_batch(
    trajectories: Sequence[Trajectory], *, max_tokens: int, gamma: float, device: torch.device | None = None
) -> Batch:
    """Tensors of `trajectories` in packs of at most `max_tokens` distinct tokens."""
    names = {name: number for number, name in enumerate(dict.fromkeys(map(_group, trajectories)))}
    sequences = [TokenSequence(trajectory.token_ids, trajectory.action_mask) for trajectory in trajectories]
    packs: list[TrainingPack] = []
    for pack in pack_sequences(sequences, max_tokens):
        pack = pack.to(device or torch.device("cpu"))
        members = [trajectories[index] for index in pack.members]
        rewards = torch.tensor([member.reward for member in members], dtype=torch.float32, device=device)
        token_rewards = place_rewards(rewards, pack.lengths)
        packs.append(
            TrainingPack(
                pack=pack,
                behavior_logprobs=_behavior_logprobs(members, device),
                rewards=rewards,
                token_rewards=token_rewards,
                returns=compute_returns(token_rewards, pack.lengths, gamma=gamma),
                groups=torch.tensor([names[_group(member)] for member in members], device=device),
            )
        )
    total = sum(int(packed.pack.lengths.sum()) for packed in packs)
    return Batch(tuple(packs), total_tokens=total, total_trajectories=len(trajectories))


def _group(trajectory: Trajectory) -> str:
    """Trajectories without a group id are groups of one."""
    return f"group:{trajectory.group_id}" if trajectory.group_id else f"single:{trajectory.trajectory_id}"


def _behavior_logprobs(members: Sequence[Trajectory], device: torch.device | None) -> Tensor | None:
    values: list[float] = []
    for member in members:
        if member.behavior_logprobs is None:
            return None
        values += member.behavior_logprobs
    return torch.tensor(values, dtype=torch.float32, device=device)
