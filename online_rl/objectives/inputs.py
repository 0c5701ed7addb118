"""The one shape of all policy objectives: `ObjectiveInputs` → (loss, metrics)."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class ObjectiveInputs:
    """The action tokens of some trajectories of a batch, flat: ``T`` tokens, ``B`` trajectories.

    A batch may be given in several parts (micro-batches); a trajectory is never split, a group may be: what needs
    the whole group, its advantages, was computed before. The totals are those of the whole batch, so that the parts'
    losses add up to the batch's.
    """

    policy_logprobs: Tensor
    """float ``[T]``, with gradient: log π(token) under the weights in training."""
    behavior_logprobs: Tensor | None
    """float ``[T]``: what the engine logged while sampling; None where the transport carries none."""
    advantages: Tensor
    """float ``[T]``, no gradient."""
    lengths: Tensor
    """long ``[B]``: action tokens of each trajectory; sums to T."""
    total_tokens: int
    """Action tokens of the whole batch."""
    total_trajectories: int
    """Trajectories of the whole batch."""


Loss = Callable[[ObjectiveInputs], tuple[Tensor, Metrics]]
"""Returns the scalar to minimise and figures about the inputs it was given."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an objective needs beside token ids, action mask and reward."""

    behavior_logprobs: bool = False
    """The log-probabilities that the serving engine sampled with; a trajectory without them is refused."""
    versions: bool = False
    """Which policy version sampled each token, so that staleness is bounded; a trajectory without them is refused."""
    value_model: bool = False
    """A value model beside the policy, for its advantages."""
    groups: bool = False
    """Several answers to one prompt in one batch. Where there is no group, the batch is the group."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A policy objective by name, and what it needs."""

    name: str
    loss: Loss
    needs: Needs
