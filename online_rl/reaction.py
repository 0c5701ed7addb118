"""What the learner does about a shift of taste: one bounded reaction, which ends by itself. Pure.

What was learned is kept in proportion to what it still earns: with the reward at `before` ahead of the shift, at
`after` in the first rewards since it was found, and `lowest` the worst reward that users give, the share
``(after − lowest) / (before − lowest)`` of the way from the base model to the policy stays. Where taste turned round,
the policy goes back to the variety of the base model, in which the new taste can be found; where it moved a little,
little is lost. The policy only ever moves towards the base model, so no reaction can exceed a KL budget.

The rewards that revealed the shift were picked by the detector for being low, so they do not say what is still earned;
the next `response.confirm` do, and after a false alarm they say that next to nothing has to go. See
docs/adr/0070-a-shift-takes-back-what-no-longer-pays.md.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict

from online_rl.drift_events import Recovery, Shift
from online_rl.settings import ResponseSettings


class Reaction(BaseModel):
    """The reaction to the shift that `stream` and `trajectories` name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["reaction"] = "reaction"
    stream: str
    trajectories: int
    since: float
    """When taste changed, Unix seconds."""
    kept: float
    """Share of the policy's way from the base model that stayed."""
    fresh_moments: bool
    """Whether the optimisers forgot their moments."""
    fresh_schedule: bool = False
    """Whether the policy's step began to fall anew."""
    value_updates: int
    """Value updates for each policy update while it runs."""
    drop_older: bool
    """Whether what was rated before `since` is dropped while it runs."""
    first_update: int
    last_update: int
    ended: Literal["", "updates", "recovered"] = ""
    """Why it is over; empty while it runs."""


def kept_share(before: float, after: float, lowest: float, least: float) -> float:
    """``(after − lowest) / (before − lowest)``, held to `least` … 1; 1 where there was nothing to lose."""
    if before <= lowest:
        return 1.0
    return min(1.0, max(least, (after - lowest) / (before - lowest)))


def plan_reaction(
    shift: Shift, rewards: Sequence[float], lowest: float, update: int, value_updates: int, settings: ResponseSettings
) -> Reaction | None:
    """The reaction to `shift` behind update number `update`; None while `rewards`, those since it was found, are few.

    `value_updates` is K of the learner's settings.
    """
    if len(rewards) < settings.confirm:
        return None
    return Reaction(
        stream=shift.stream,
        trajectories=shift.trajectories,
        since=shift.evidence["changed_at"],
        kept=kept_share(shift.before, fmean(rewards), lowest, settings.least_kept),
        fresh_moments=settings.fresh_moments,
        fresh_schedule=settings.fresh_schedule,
        value_updates=value_updates * settings.value_factor,
        drop_older=settings.drop_older,
        first_update=update + 1,
        last_update=update + settings.updates,
    )


def end_reaction(reaction: Reaction, update: int, recovery: Recovery | None) -> Reaction | None:
    """The ended reaction where `update` was its last, or where the reward is back; None while it goes on."""
    if recovery is not None:
        return reaction.model_copy(update={"ended": "recovered"})
    return reaction.model_copy(update={"ended": "updates"}) if update >= reaction.last_update else None
