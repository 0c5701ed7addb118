"""Scores of the policy under weights as they are served: rounded to the precision of the base model's file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from online_rl.packing import TokenSequence, pack_sequences
from online_rl.policy_model import Policy


@contextmanager
def serving(policy: Policy, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block the policy computes with `weights` in place of its own (none: the base model's), in its own
    precision."""
    weights = weights or policy.base_weights()
    layers = policy.layers()
    own = {name: layers[name].data for name in weights}
    try:
        for name, weight in weights.items():
            layers[name].data = weight.to(own[name])
        with policy.plain():
            yield
    finally:
        for name, weight in own.items():
            layers[name].data = weight


@torch.no_grad()
def score_served(
    policy: Policy, weights: Mapping[str, Tensor], sequences: Sequence[TokenSequence], max_tokens: int = 512
) -> list[Tensor]:
    """For each sequence, float32 ``[N]``: log-probabilities of its N action tokens under served `weights` (none: the
    base model's), on the CPU. The weights are those served; the arithmetic is the learner's, the exact side of the
    comparison."""
    found: dict[int, Tensor] = {}
    with serving(policy, weights):
        for pack in pack_sequences(sequences, max_tokens):
            logprobs = policy.score(pack).logprobs.cpu()
            found |= dict(zip(pack.members, logprobs.split(pack.lengths.tolist()), strict=True))
    return [found[index] for index in range(len(sequences))]
