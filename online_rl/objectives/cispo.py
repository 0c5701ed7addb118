"""Clipped importance-sampling weights (CISPO, MiniMax-M1, arXiv 2506.13585).

``−mean over action tokens of stopgrad(min(r_t, 1+ε_high)) · A_t · logπ_t``. As in the paper there is no lower bound.
Every token keeps a gradient: where SAO drops a token outside its region, CISPO caps its weight. ε_high is SAO's, so
that the two differ in nothing else above the region.
"""

from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.ratios import bounded_ratio, describe_ratios, log_ratios


def cispo_loss(inputs: ObjectiveInputs, *, epsilon_high: float) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures; ``mask_ratio`` is the share of capped tokens.

    Raises MissingBehaviorLogprobs.
    """
    log_ratio = log_ratios(inputs).detach()
    ratio = bounded_ratio(log_ratio)
    weight = ratio.clamp(max=1.0 + epsilon_high)
    loss = -(weight * inputs.advantages * inputs.policy_logprobs).sum() / inputs.total_tokens
    return loss, describe_ratios(log_ratio, weight < ratio)
