"""Log-probabilities, entropies and the divergence from a reference at action tokens, without keeping any logits.

The output matrix W is frozen, so the gradients with respect to the hidden state of a token can be formed in the
forward pass while the logits are there:

- of the log-probability: ``W[token] − Σ_v p_v W[v]``;
- of KL(p ‖ q): ``Σ_v p_v (log p_v − log q_v − KL) W[v]``.

Kept is one vector of hidden size for each, where logits would take the size of the vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

CHUNK = 128


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the action tokens of a pack, float32 ``[T]`` each; all are of the raw distribution (temperature 1)."""

    logprobs: Tensor
    """With gradient where it is enabled."""
    entropies: Tensor
    """Nats; without gradient."""
    kl: Tensor
    """KL to the reference over the whole vocabulary, nats, with gradient; 0 where no reference was given."""
    reference_logprobs: Tensor
    """Under the reference, without gradient; NaN where none was given."""


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, reference: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        keep = ctx.needs_input_grad[0]
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropies, kl = torch.empty_like(logprobs), torch.zeros_like(logprobs)
        reference_logprobs = torch.full_like(logprobs, float("nan"))
        score_gradient = torch.empty_like(hidden) if keep else None
        kl_gradient = torch.zeros_like(hidden) if keep else None
        for start in range(0, len(targets), CHUNK):
            part = slice(start, start + CHUNK)
            all_logprobs = linear(hidden[part], weight, bias).float().log_softmax(-1)
            probabilities = all_logprobs.exp()
            logprobs[part] = all_logprobs.gather(-1, targets[part, None])[:, 0]
            entropies[part] = -torch.linalg.vecdot(probabilities, all_logprobs)
            if score_gradient is not None:
                score_gradient[part] = weight[targets[part]] - probabilities.to(weight.dtype) @ weight
            if reference is not None:
                others = linear(reference[part], weight, bias).float().log_softmax(-1)
                reference_logprobs[part] = others.gather(-1, targets[part, None])[:, 0]
                excess = all_logprobs.sub_(others)
                kl[part] = torch.linalg.vecdot(probabilities, excess)
                if kl_gradient is not None:
                    pull = probabilities.mul_(excess.sub_(kl[part, None]))
                    kl_gradient[part] = pull.to(weight.dtype) @ weight
        if score_gradient is not None:
            ctx.save_for_backward(score_gradient, kl_gradient)
        ctx.mark_non_differentiable(entropies, reference_logprobs)
        return logprobs, entropies, kl, reference_logprobs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        score_gradient, kl_gradient = ctx.saved_tensors
        dtype = score_gradient.dtype
        to_hidden = gradients[0][:, None].to(dtype) * score_gradient + gradients[2][:, None].to(dtype) * kl_gradient
        return to_hidden, None, None, None, None


def score_tokens(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, reference: Tensor | None = None
) -> Scores:
    """Scores of `targets` ``[T]`` given the hidden states ``[T, H]`` before them.

    `weight` ``[V, H]`` and `bias` ``[V]`` are the frozen output layer; `reference` ``[T, H]`` are the hidden states of
    the model to compare with, under the same output layer. The distribution is the raw one: temperature 1, no
    truncation.
    """
    return Scores(*_TokenScores.apply(hidden, weight, bias, targets, reference))  # pyright: ignore[reportGeneralTypeIssues]
