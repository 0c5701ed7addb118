"""The naive current-policy objective, which ASymPO's paper (arXiv 2606.03070) starts from.

``S_g = −mean over action tokens of logπ`` of response g. Minimised: ``mean over responses of A_g S_g``. No ratio, so
no log-probabilities of the policy that sampled. Stale bad responses have large S and come to dominate the loss.
"""

from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.ratios import describe_lag
from online_rl.objectives.responses import describe_sides, spread


def naive_loss(inputs: ObjectiveInputs) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures."""
    terms = -inputs.advantages * inputs.policy_logprobs / spread(inputs.lengths, inputs.lengths)
    return terms.sum() / inputs.total_trajectories, describe_sides(terms) | describe_lag(inputs)
