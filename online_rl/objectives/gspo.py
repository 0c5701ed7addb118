"""Group sequence policy optimisation (GSPO, arXiv 2507.18071): one ratio for a whole response.

``s_g = exp(mean over action tokens of (logπ − logμ))``, the geometric mean of the token ratios;
``−mean over responses of min(s_g A_g, clip(s_g, 1−c_low, 1+c_high) A_g)``. The mean over tokens makes s far narrower
than a token's ratio, hence its own, far smaller clip range.
"""

from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.ppo import clipped_surrogate
from online_rl.objectives.ratios import bounded_ratio, describe_ratios, log_ratios
from online_rl.objectives.responses import response_means, spread


def gspo_loss(inputs: ObjectiveInputs, *, clip_low: float, clip_high: float) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures. Raises MissingBehaviorLogprobs."""
    log_ratio = log_ratios(inputs)
    ratio = bounded_ratio(response_means(log_ratio, inputs.lengths))
    advantages = response_means(inputs.advantages, inputs.lengths)
    loss, clipped = clipped_surrogate(ratio, advantages, clip_low, clip_high)
    return loss.sum() / inputs.total_trajectories, describe_ratios(log_ratio, spread(clipped, inputs.lengths))
