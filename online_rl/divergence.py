"""When training has diverged, and which state was the last good one. Pure.

A batch that fails at once (NaN) is undone by the trainer. What diverges slowly is seen here: figures beyond their
bounds in several updates in a row. The figures of an update are measured on the weights before it, so an update
within the bounds says that the checkpoint before it is good.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from online_rl.settings import LearnerSettings

_BOUNDS = {
    "policy/loss": "guard_loss",
    "value/loss": "guard_loss",
    "policy/grad_norm": "guard_grad_norm",
    "value/grad_norm": "guard_grad_norm",
    "policy/kl_to_base": "guard_kl",
}


class GuardState(BaseModel):
    """What the guard knows; part of every checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    streak: int = 0
    """Updates in a row with a figure beyond its bound, or failed."""
    good: int | None = None
    """The newest checkpoint that was found good."""


def find_excess(metrics: Mapping[str, float], settings: LearnerSettings) -> str | None:
    """None where all figures (`area/name`) of an update are within their bounds, else the one that is not, in words."""
    for name, setting in _BOUNDS.items():
        bound = getattr(settings, setting)
        if name in metrics and not abs(metrics[name]) <= bound:
            return f"{name} is {metrics[name]:.4g}, learner.{setting} is {bound:g}"
    return None


def follow(state: GuardState, excess: str | None, checkpoint: int) -> GuardState:
    """After an update from the weights in `checkpoint`."""
    if excess is None:
        return GuardState(streak=0, good=checkpoint)
    return GuardState(streak=state.streak + 1, good=state.good)


def has_diverged(state: GuardState, settings: LearnerSettings) -> bool:
    """Whether to go back to the checkpoint `state.good`."""
    return settings.guard_updates > 0 and state.streak >= settings.guard_updates and state.good is not None
