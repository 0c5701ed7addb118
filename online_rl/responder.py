"""The response to shifts of taste as it goes on: which shift waits for its reaction, which reaction runs.

::

    shift in all traffic ─► `response.confirm` rewards ─► reaction on the trainer ─► ended: recovered, or its updates

One reaction at a time. What it consists of is planned in `online_rl.reaction`; here it is done to the trainer.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from online_rl.drift_events import Recovery, Shift
from online_rl.reaction import Reaction, end_reaction, plan_reaction
from online_rl.settings import ResponseSettings


class Reacting(Protocol):
    """The part of the trainer that a reaction acts on."""

    def take_back(self, kept: float) -> None: ...
    def forget_moments(self) -> None: ...
    def restart_schedule(self) -> None: ...


class Rewards(Protocol):
    """The part of the drift monitor that a reaction is measured by."""

    @property
    def rewards_since_shift(self) -> list[float]: ...
    @property
    def lowest_reward(self) -> float: ...


class Responder:
    """Fed what each update's trajectories revealed; reacts, and says what it did."""

    def __init__(
        self,
        trainer: Reacting,
        rewards: Rewards,
        settings: ResponseSettings,
        *,
        value_updates: int,
        shift: Shift | None = None,
        reaction: Reaction | None = None,
    ) -> None:
        """`value_updates` is K of the learner's settings; `shift` and `reaction` are those of a restored learner."""
        self._trainer = trainer
        self._rewards = rewards
        self._settings = settings
        self._value_updates = value_updates
        self.shift = shift
        """Confirmed by the detector, and waiting for the rewards that say how much is still earned."""
        self.reaction = reaction
        """The one that runs."""

    @property
    def value_updates(self) -> int:
        """K now."""
        return self._value_updates if self.reaction is None else self.reaction.value_updates

    @property
    def rated_since(self) -> float:
        """Unix seconds: what was rated before is of an old taste and trains no more. −∞ where that is so of nothing."""
        return self.reaction.since if self.reaction is not None and self.reaction.drop_older else -math.inf

    def react(self, found: Sequence[Shift | Recovery], update: int) -> list[Reaction]:
        """Behind update number `update`: the reaction that ended, and the one that began; most often neither.

        What is not of all traffic, or not of taste, neither begins a reaction nor ends one.
        """
        changed: list[Reaction] = []
        recovery: Recovery | None = None
        for event in found:
            if isinstance(event, Shift):
                if event.is_taste_of_all:
                    self.shift = event if self._settings.enabled else None
            elif event.is_of_all:
                self.shift = None
                recovery = recovery or event
        if self.reaction is not None and (ended := end_reaction(self.reaction, update, recovery)) is not None:
            self.reaction = None
            changed.append(ended)
        if self.reaction is None and self.shift is not None and (begun := self._plan(self.shift, update)) is not None:
            self.reaction, self.shift = begun, None
            self._begin(begun)
            changed.append(begun)
        return changed

    def _plan(self, shift: Shift, update: int) -> Reaction | None:
        rewards = self._rewards
        since, lowest = rewards.rewards_since_shift, rewards.lowest_reward
        return plan_reaction(shift, since, lowest, update, self._value_updates, self._settings)

    def _begin(self, reaction: Reaction) -> None:
        self._trainer.take_back(reaction.kept)
        if reaction.fresh_moments:
            self._trainer.forget_moments()
        if reaction.fresh_schedule:
            self._trainer.restart_schedule()
