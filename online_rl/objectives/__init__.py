"""Policy objectives, one file an idea, all of one shape (see `inputs`)."""

from online_rl.objectives.catalogue import OBJECTIVES, Entry, make_objective
from online_rl.objectives.inputs import Loss, Metrics, Needs, Objective, ObjectiveInputs
from online_rl.objectives.ratios import MissingBehaviorLogprobs

__all__ = [
    "OBJECTIVES",
    "Entry",
    "Loss",
    "Metrics",
    "MissingBehaviorLogprobs",
    "Needs",
    "Objective",
    "ObjectiveInputs",
    "make_objective",
]
