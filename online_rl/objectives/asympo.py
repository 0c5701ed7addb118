"""Asymmetric-scale policy optimisation (ASymPO, arXiv 2606.03070): each response by its own current scale.

``S_g = −mean over action tokens of logπ`` of response g. Minimised: ``mean over responses of A_g S_g / stopgrad(S_g)``.
Its value is the mean advantage, so 0 on zero-sum groups whatever the policy; only its gradient speaks.

The paper's stabiliser: log p is held at ``log p_high`` from above where A ≥ 0 (what is near certain needs no push)
and at ``log p_low`` from below where A < 0 (what is near impossible neither); a held token has no gradient, and the
scale is that of the held log-probabilities. The denominator has a floor in nats, above 0. ``p_high = 1`` and
``p_low = 0`` hold nothing.
"""

import math

import torch
from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.ratios import describe_lag
from online_rl.objectives.responses import describe_sides, response_means, spread


def asympo_loss(inputs: ObjectiveInputs, *, p_low: float, p_high: float, floor: float) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures."""
    lowest = math.log(p_low) if p_low > 0 else -math.inf
    logprobs = torch.where(
        inputs.advantages >= 0,
        inputs.policy_logprobs.clamp(max=math.log(p_high)),
        inputs.policy_logprobs.clamp(min=lowest),
    )
    scale = -response_means(logprobs, inputs.lengths).detach()
    terms = -inputs.advantages * logprobs / spread(inputs.lengths * scale.clamp(min=floor), inputs.lengths)
    held = (logprobs != inputs.policy_logprobs).float()
    metrics = {
        "policy/scale_min": float(scale.min()) if len(scale) else 0.0,
        "policy/held_ratio": float(held.mean()) if len(held) else 0.0,
    }
    return terms.sum() / inputs.total_trajectories, metrics | describe_sides(terms) | describe_lag(inputs)
