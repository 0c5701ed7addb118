"""Probes: which sequences tell a version from its parent. Pure."""

from collections.abc import Sequence

import torch
from torch import Tensor

from online_rl.packing import TokenSequence
from online_rl.schemas import Probe

COUNT = 4
TOKENS = 64
"""Most probed tokens of one sequence."""
CERTAIN = -12.0
"""Less probable tokens are left out: there, rounding alone moves log-probabilities by more than a version does."""


def choose_probes(
    sequences: Sequence[TokenSequence], logprobs: Sequence[Tensor], parent_logprobs: Sequence[Tensor]
) -> list[Probe]:
    """The `COUNT` sequences on whose action tokens the two versions differ most (mean |difference|), widest first.

    `logprobs` and `parent_logprobs` hold float ``[N]`` for the N action tokens of each sequence, under the weights
    as they are served.
    """
    found: list[tuple[float, int, Probe]] = []
    for index, (sequence, new, old) in enumerate(zip(sequences, logprobs, parent_logprobs, strict=True)):
        usable = torch.nonzero(torch.minimum(new, old) > CERTAIN)[:TOKENS, 0].tolist()
        if not usable:
            continue
        positions = sequence.action_positions
        probe = Probe(
            token_ids=tuple(sequence.token_ids),
            positions=tuple(positions[at] for at in usable),
            logprobs=tuple(new[usable].tolist()),
            parent_logprobs=tuple(old[usable].tolist()),
        )
        found.append((float((new - old)[usable].abs().mean()), -index, probe))
    found.sort(key=lambda entry: entry[:2], reverse=True)
    return [probe for _, _, probe in found[:COUNT]]
