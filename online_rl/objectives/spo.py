"""Scaled policy optimisation (SPO, arXiv 2606.03070): the naive objective with a smaller negative side.

Advantages below 0 are multiplied by α. α = 1 is the naive objective, α = 0 trains on good responses only.
"""

from dataclasses import replace

import torch
from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs
from online_rl.objectives.naive import naive_loss


def spo_loss(inputs: ObjectiveInputs, *, alpha: float) -> tuple[Tensor, Metrics]:
    """Scalar loss (minimised) and figures."""
    scaled = torch.where(inputs.advantages < 0, alpha * inputs.advantages, inputs.advantages)
    return naive_loss(replace(inputs, advantages=scaled))
