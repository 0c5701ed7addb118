"""What drift detection says: a shift, with its cause, and the recovery from it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

REWARD = "reward"
RESIDUAL = "residual"
MIX = "mix"
METRIC = "metric:"
"""In front of a metric's name, where the reward is made of several."""
Cause = Literal["taste", "prompt_mix"]


class Shift(BaseModel):
    """A detected change. `stream`, `cohort` and `trajectories` name it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["shift"] = "shift"
    stream: str
    """What changed: `reward`, `residual`, ``metric:NAME``, or the `mix` of prompts and users."""
    cohort: str = ""
    """``dimension=label`` of the one that fell while the rest did not, or whose share changed most; empty: all."""
    cause: Cause = "taste"
    """`taste`: users rate the same kind of prompt otherwise; `prompt_mix`: other prompts or users came."""
    trajectories: int
    """Rewards seen when it was found, of all traffic."""
    detected_at: float
    before: float
    """Mean reward (or metric) before the change, over at most `recovery_window` of them."""
    after: float
    """Mean since."""
    evidence: dict[str, float]

    @property
    def is_taste_of_all(self) -> bool:
        """Whether all traffic earns less because users changed their mind: what a reaction is for."""
        return self.cause == "taste" and not self.cohort and self.stream in (REWARD, RESIDUAL)


class Recovery(BaseModel):
    """The reward is back at 90% of its level before the shift that `stream`, `cohort` and `trajectories` name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["recovery"] = "recovery"
    stream: str
    cohort: str = ""
    trajectories: int
    recovered_at: float
    recovered_after: int
    """Trajectories (the cohort's own) from the change to the recovery."""
    recovered_seconds: float

    @property
    def is_of_all(self) -> bool:
        """Whether the reward of all traffic is back, not a cohort's or a metric's alone."""
        return not self.cohort and self.stream in (REWARD, RESIDUAL)


class OpenShift(BaseModel):
    """A shift that has not been recovered from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str
    cohort: str = ""
    trajectories: int
    before: float
    changed_index: int
    """Number of rewards seen when the change happened, of the stream's own."""
    changed_at: float
