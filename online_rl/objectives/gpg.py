"""Group policy gradient (GPG, arXiv 2504.02546): group advantages, no ratio, no clip.

Minimised: ``Σ −A_g logπ_t / Σ action tokens``. Unlike the naive objective a long response weighs more than a short one.
"""

from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.ratios import describe_lag
from online_rl.objectives.responses import describe_sides


def gpg_loss(inputs: ObjectiveInputs) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures."""
    terms = -inputs.advantages * inputs.policy_logprobs
    return terms.sum() / inputs.total_tokens, describe_sides(terms) | describe_lag(inputs)
