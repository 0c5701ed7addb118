"""Policy objectives, one file an idea, all of one shape (see `inputs`)."""

from functools import partial

from online_rl.objectives.inputs import Metrics, MissingBehaviorLogprobs, Objective, ObjectiveInputs
from online_rl.objectives.sao import sao_loss
from online_rl.settings import LearnerSettings

__all__ = ["Metrics", "MissingBehaviorLogprobs", "Objective", "ObjectiveInputs", "make_objective"]


def make_objective(settings: LearnerSettings) -> Objective:
    """The objective named by ``learner.objective``, with its parameters."""
    sao = partial(sao_loss, epsilon_low=settings.epsilon_low, epsilon_high=settings.epsilon_high)
    objectives = {"sao": Objective("sao", sao, needs_behavior_logprobs=True)}
    return objectives[settings.objective]
