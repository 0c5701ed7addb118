"""All objectives by name: a loss, the advantages that go with it, and what the two need.

Many differ in one of the two only, which is what makes them comparable: `sao`, `grpo_dis` and the running means share
the double-sided weight, `ppo`, `grpo` and `single_stream` share PPO's clip, all of the ASymPO family share the group
mean. Only `sao` and `ppo` need a value model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from online_rl.objectives.asympo import asympo_loss
from online_rl.objectives.cispo import cispo_loss
from online_rl.objectives.gpg import gpg_loss
from online_rl.objectives.gspo import gspo_loss
from online_rl.objectives.inputs import Loss, Needs, Objective
from online_rl.objectives.naive import naive_loss
from online_rl.objectives.ppo import ppo_loss
from online_rl.objectives.sao import sao_loss
from online_rl.objectives.spo import spo_loss
from online_rl.settings import LearnerSettings

Advantages = Literal["gae", "group_mean", "group_scaled", "window", "prompt_window", "ema", "beta_tracker"]
"""Where the advantages come from: `online_rl.advantages` (gae), else `online_rl.baselines`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the catalogue."""

    make_loss: Callable[[LearnerSettings], Loss]
    advantages: Advantages
    ratio: bool
    """Whether the loss weighs by π/μ: then it needs the log-probabilities of what sampled, and versions, because a
    ratio corrects a bounded staleness only."""

    @property
    def needs(self) -> Needs:
        return Needs(
            behavior_logprobs=self.ratio,
            versions=self.ratio,
            value_model=self.advantages == "gae",
            groups=self.advantages in {"group_mean", "group_scaled"},
        )


def _dis(settings: LearnerSettings) -> Loss:
    return partial(sao_loss, epsilon_low=settings.epsilon_low, epsilon_high=settings.epsilon_high)


def _clip(settings: LearnerSettings) -> Loss:
    return partial(ppo_loss, clip_low=settings.clip_low, clip_high=settings.clip_high)


def _gspo(settings: LearnerSettings) -> Loss:
    return partial(gspo_loss, clip_low=settings.gspo_clip_low, clip_high=settings.gspo_clip_high)


def _cispo(settings: LearnerSettings) -> Loss:
    return partial(cispo_loss, epsilon_high=settings.epsilon_high)


def _spo(settings: LearnerSettings) -> Loss:
    return partial(spo_loss, alpha=settings.spo_alpha)


def _asympo(settings: LearnerSettings) -> Loss:
    return partial(asympo_loss, p_low=settings.asympo_p_low, p_high=settings.asympo_p_high, floor=settings.asympo_floor)


OBJECTIVES: dict[str, Entry] = {
    "sao": Entry(_dis, "gae", ratio=True),
    "ppo": Entry(_clip, "gae", ratio=True),
    "grpo": Entry(_clip, "group_scaled", ratio=True),
    "grpo_dis": Entry(_dis, "group_scaled", ratio=True),
    "cispo": Entry(_cispo, "group_scaled", ratio=True),
    "gspo": Entry(_gspo, "group_scaled", ratio=True),
    "running_mean": Entry(_dis, "window", ratio=True),
    "prompt_running_mean": Entry(_dis, "prompt_window", ratio=True),
    "ema": Entry(_dis, "ema", ratio=True),
    "single_stream": Entry(_clip, "beta_tracker", ratio=True),
    "naive": Entry(lambda _: naive_loss, "group_mean", ratio=False),
    "spo": Entry(_spo, "group_mean", ratio=False),
    "asympo": Entry(_asympo, "group_mean", ratio=False),
    "gpg": Entry(lambda _: gpg_loss, "group_mean", ratio=False),
}


def make_objective(settings: LearnerSettings) -> Objective:
    """The objective named by ``learner.objective``, with its parameters."""
    entry = OBJECTIVES[settings.objective]
    return Objective(settings.objective, entry.make_loss(settings), entry.needs)
