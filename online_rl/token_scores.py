"""Log-probabilities and entropies at action tokens, without keeping any logits.

The output matrix is frozen, so the gradient of each token's log-probability with respect to its hidden state,
``W[token] − Σ_v p_v W[v]``, can be formed in the forward pass while the logits are there. Kept is one vector of
hidden size for each token, where logits would take the size of the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 128


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        keep = ctx.needs_input_grad[0]
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropies = torch.empty_like(logprobs)
        jacobian = torch.empty_like(hidden) if keep else None
        for start in range(0, len(targets), CHUNK):
            part = slice(start, start + CHUNK)
            logits = torch.nn.functional.linear(hidden[part], weight, bias).float()
            normaliser = logits.logsumexp(-1)
            logprobs[part] = logits.gather(-1, targets[part, None])[:, 0] - normaliser
            probabilities = (logits - normaliser[:, None]).exp_()
            entropies[part] = normaliser - torch.linalg.vecdot(probabilities, logits)
            if jacobian is not None:
                jacobian[part] = weight[targets[part]] - probabilities.to(weight.dtype) @ weight
        if jacobian is not None:
            ctx.save_for_backward(jacobian)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (jacobian,) = ctx.saved_tensors
        return (gradients[0][:, None].to(jacobian.dtype) * jacobian), None, None, None


def score_tokens(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (with gradient to `hidden`) and entropies in nats (without), both float32 ``[T]``.

    `hidden` ``[T, H]`` precedes the `targets` ``[T]``; `weight` ``[V, H]`` and `bias` ``[V]`` are the frozen output
    layer. The distribution is the raw one: temperature 1, no truncation.
    """
    logprobs, entropies = _TokenLogprobs.apply(hidden, weight, bias, targets)  # pyright: ignore[reportGeneralTypeIssues]
    return logprobs, entropies
