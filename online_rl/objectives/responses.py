"""Per-response means over flat action tokens: what the objectives of whole responses share."""

import torch
from torch import Tensor

from online_rl.objectives.inputs import Metrics


def response_means(x: Tensor, lengths: Tensor) -> Tensor:
    """Mean of ``x[T]`` over the tokens of each response, ``[B]``; 0 for a response without tokens."""
    # Unchecked: `lengths` sums to T by the contract, and the check does not take B = 0.
    return torch.segment_reduce(x, "sum", lengths=lengths, unsafe=True) / lengths.clamp(min=1)


def spread(per_response: Tensor, lengths: Tensor) -> Tensor:
    """``[B]`` → ``[T]``: each response's number at each of its tokens."""
    return per_response.repeat_interleave(lengths)


def describe_sides(contributions: Tensor) -> Metrics:
    """``contributions[T]`` to the loss, before signs cancel: the share that comes from negative advantages.

    ASymPO's paper (arXiv 2606.03070) blames its growth under lag for the collapse of the naive objective.
    """
    total = float(contributions.detach().abs().sum())
    negative = float(contributions.detach().clamp(max=0.0).abs().sum())
    return {"policy/negative_share": negative / total if total > 0 else 0.0}
