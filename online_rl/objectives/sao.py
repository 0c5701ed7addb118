"""Single-rollout asynchronous optimisation: direct double-sided importance sampling (SAO, arXiv 2607.07508).

``r_t = exp(logπ_t − logμ_t)``, with μ the policy that sampled (no old policy is kept);
``f(r) = r`` where ``1−ε_low < r < 1+ε_high``, else 0, whatever the sign of the advantage;
objective, maximised: the mean over action tokens of ``stopgrad(f(r_t)) · A_t · logπ_t``.

The mean divides by all action tokens of the batch, the dropped ones included. f is detached: with its gradient the
update would gain a factor ``1 + logπ`` that no policy gradient has.
"""

import torch
from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.ratios import describe_ratios, log_ratios


def sao_loss(inputs: ObjectiveInputs, *, epsilon_low: float, epsilon_high: float) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures. Raises MissingBehaviorLogprobs."""
    log_ratio = log_ratios(inputs).detach()
    weight = double_sided(log_ratio.exp(), epsilon_low, epsilon_high)
    loss = -(weight * inputs.advantages * inputs.policy_logprobs).sum() / inputs.total_tokens
    return loss, describe_ratios(log_ratio, weight == 0)


def double_sided(ratio: Tensor, epsilon_low: float, epsilon_high: float) -> Tensor:
    """``f(r)``, elementwise: the ratio strictly inside the trust region, 0 elsewhere (infinite ratios too)."""
    inside = (ratio > 1.0 - epsilon_low) & (ratio < 1.0 + epsilon_high)
    return torch.where(inside, ratio, torch.zeros_like(ratio))
