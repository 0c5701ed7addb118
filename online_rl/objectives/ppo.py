"""PPO's clipped surrogate against the policy that sampled (arXiv 1707.06347), with a higher upper clip as in DAPO
(arXiv 2503.14476).

``−mean over action tokens of min(r_t A_t, clip(r_t, 1−c_low, 1+c_high) A_t)``, ``r_t = π/μ``. With a value model
this is VAPO's policy loss; with group advantages, GRPO's. The mean is over all action tokens of the batch, as in
DAPO, so that it differs from the other objectives in the weight alone.

It clips one side only: a token of negative advantage whose ratio grew keeps its full, growing weight. That is where
SAO's double-sided rule differs.
"""

import torch
from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.ratios import bounded_ratio, describe_ratios, log_ratios


def ppo_loss(inputs: ObjectiveInputs, *, clip_low: float, clip_high: float) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures. Raises MissingBehaviorLogprobs."""
    log_ratio = log_ratios(inputs)
    loss, clipped = clipped_surrogate(bounded_ratio(log_ratio), inputs.advantages, clip_low, clip_high)
    return loss.sum() / inputs.total_tokens, describe_ratios(log_ratio, clipped)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Elementwise loss, and a bool of where it is clipped, so that no gradient flows."""
    free = ratio * advantages
    held = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return -torch.minimum(free, held), held < free
