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
    starts: Tensor
    """bool ``[T]``: the first token of each action."""
    stretch: "Stretch | None" = None
    """Where advantages are estimated over observation tokens too."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The trajectories of a pack from their first action token to their last, with what they observed: U tokens."""

    pack: Pack
    """With all U tokens as its action tokens."""
    is_action: Tensor
    """bool ``[U]``: which were sampled, T of them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All packs of one update."""

    packs: tuple[TrainingPack, ...]
    total_tokens: int
    """Action tokens."""
    total_trajectories: int


def make_batch(
    trajectories: Sequence[Trajectory],
    *,
    max_tokens: int,
    gamma: float,
    device: torch.device | None = None,
    observations: bool = False,
) -> Batch:
    """Tensors of `trajectories` in packs of at most `max_tokens` distinct tokens; with `observations`, `Stretch`es."""
    sequences = [TokenSequence(trajectory.token_ids, trajectory.action_mask) for trajectory in trajectories]
    stretches = _make_stretches(sequences, max_tokens, device) if observations else None
    packs: list[TrainingPack] = []
    for number, pack in enumerate(pack_sequences(sequences, max_tokens)):
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
                starts=torch.tensor([start for member in members for start in _starts(member)], device=device),
                stretch=None if stretches is None else stretches[number],
            )
        )
    total = sum(int(packed.pack.lengths.sum()) for packed in packs)
    return Batch(tuple(packs), total_tokens=total, total_trajectories=len(trajectories))


def _make_stretches(sequences: Sequence[TokenSequence], max_tokens: int, device: torch.device | None) -> list[Stretch]:
    """One for each pack: how sequences are packed depends on their tokens alone, so the members are the same."""
    bounds = [(sequence.action_positions[0], sequence.action_positions[-1] + 1) for sequence in sequences]
    filled = [
        TokenSequence(sequence.token_ids, [int(first <= place < end) for place in range(len(sequence.token_ids))])
        for sequence, (first, end) in zip(sequences, bounds, strict=True)
    ]
    stretches: list[Stretch] = []
    for pack in pack_sequences(filled, max_tokens):
        marks = [mark for member in pack.members for mark in sequences[member].action_mask[slice(*bounds[member])]]
        is_action = torch.tensor(marks, dtype=torch.bool, device=device)
        stretches.append(Stretch(pack.to(device or torch.device("cpu")), is_action))
    return stretches


def _starts(trajectory: Trajectory) -> list[bool]:
    """For each action token, whether the token before it was not sampled."""
    mask = trajectory.action_mask
    return [not mask[place - 1] for place, marked in enumerate(mask) if marked]


def _behavior_logprobs(members: Sequence[Trajectory], device: torch.device | None) -> Tensor | None:
    values: list[float] = []
    for member in members:
        if member.behavior_logprobs is None:
            return None
        values += member.behavior_logprobs
    return torch.tensor(values, dtype=torch.float32, device=device)
