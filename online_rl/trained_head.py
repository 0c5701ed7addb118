"""Token scores where the output layer trains too, as it does when all weights train.

`token_scores` forms its gradients in the forward pass, which only a frozen output layer allows. Here each chunk of
tokens is computed again in the backward pass, so that still no more than one chunk's logits exist at a time.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from online_rl.token_scores import CHUNK, Scores


def score_tokens_trained(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    reference_logits: tuple[Tensor, Tensor, Tensor | None] | None = None,
) -> Scores:
    """Scores of `targets` ``[T]`` given the hidden states ``[T, H]`` before them, with gradient for all inputs.

    `weight` ``[V, H]`` and `bias` ``[V]`` are the output layer. `reference_logits` holds hidden states ``[T, H]``,
    weight and bias of the model to compare with. Same results as `token_scores.score_tokens`.
    """
    parts = []
    for start in range(0, len(targets), CHUNK):
        part = slice(start, start + CHUNK)
        others = None
        if reference_logits is not None:
            states, *layer = reference_logits
            others = (states[part], *layer)
        parts.append(checkpoint(_score_chunk, hidden[part], weight, bias, targets[part], others, use_reentrant=False))
    logprobs, entropies, kl, reference_logprobs = (torch.cat(column) for column in zip(*parts, strict=True))
    return Scores(logprobs, entropies.detach(), kl, reference_logprobs.detach())


def _score_chunk(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    others: tuple[Tensor, Tensor, Tensor | None] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    table = linear(hidden, weight, bias).float().log_softmax(-1)
    logprobs = table.gather(-1, targets[:, None])[:, 0]
    entropies = -(table.detach().exp() * table.detach()).sum(-1)
    if others is None:
        return logprobs, entropies, torch.zeros_like(entropies), torch.full_like(entropies, float("nan"))
    with torch.no_grad():
        reference = linear(*others).float().log_softmax(-1)
    kl = (table.exp() * (table - reference)).sum(-1)
    return logprobs, entropies, kl, reference.gather(-1, targets[:, None])[:, 0]
