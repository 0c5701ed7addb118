"""Advantages without a value model: reward minus a baseline, one number a trajectory.

All have one shape, `Baseline`. Those that remember compare with the rewards of the batches before, then learn this
batch's: a reward is never part of its own baseline. Where there is no past yet, the batch stands in for it. What they
remember is part of every checkpoint.
"""

from collections.abc import Callable, Mapping

from online_rl.baselines.baseline import Baseline, BaselineState
from online_rl.baselines.beta_tracker import BetaTracker
from online_rl.baselines.group import GroupBaseline
from online_rl.baselines.prompt_window import PromptWindowBaseline
from online_rl.baselines.running import EmaBaseline, WindowBaseline
from online_rl.objectives.catalogue import OBJECTIVES
from online_rl.settings import LearnerSettings

__all__ = ["Baseline", "BaselineState", "make_baseline"]


def make_baseline(settings: LearnerSettings) -> Baseline | None:
    """The baseline of ``learner.objective``; None where its advantages come from a value model."""
    makers: Mapping[str, Callable[[], Baseline | None]] = {
        "gae": lambda: None,
        "group_mean": lambda: GroupBaseline(scaled=False),
        "group_scaled": lambda: GroupBaseline(scaled=True),
        "window": lambda: WindowBaseline(settings.baseline_window),
        "ema": lambda: EmaBaseline(settings.baseline_decay),
        "prompt_window": lambda: PromptWindowBaseline(settings.prompt_window, settings.max_prompts),
        "beta_tracker": lambda: BetaTracker(settings.tracker_discount, settings.max_prompts),
    }
    return makers[OBJECTIVES[settings.objective].advantages]()
