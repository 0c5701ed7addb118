"""The advantages of a batch's packs: from a value model's values, or from one number a trajectory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from online_rl.advantages import compute_advantages, compute_plain_advantages, compute_step_advantages
from online_rl.batch import Batch, TrainingPack
from online_rl.settings import LearnerSettings


def estimate_gae(part: TrainingPack, values: Tensor, settings: LearnerSettings) -> Tensor:
    """``[T]`` from `values` ``[T]``, or ``[U]`` for ``learner.gae = plain``."""
    decay = {"gamma": settings.gamma, "alpha": settings.gae_alpha}
    if part.stretch is not None:
        lengths = part.stretch.pack.lengths
        return compute_plain_advantages(values, part.token_rewards, part.stretch.is_action, lengths, **decay)
    if settings.gae == "step":
        return compute_step_advantages(values, part.token_rewards, part.starts, part.pack.lengths, **decay)
    return compute_advantages(values, part.token_rewards, part.pack.lengths, **decay)


def center(advantages: Sequence[Tensor]) -> tuple[list[Tensor], float]:
    """Without their mean over all action tokens of the batch, and that mean. ``[T]`` for each pack → the same shapes.

    Values that lag behind a shift of taste make every advantage of a batch negative, and an update that only pushes
    down what was sampled flattens the policy towards noise (docs/adr/0004-centred-advantages.md).
    """
    mean = torch.cat(list(advantages)).mean()
    return [part - mean for part in advantages], float(mean)


def spread_advantages(batch: Batch, advantages: Sequence[float]) -> list[Tensor]:
    """One for each trajectory of the batch → ``[T]`` for each pack: the same at each of a trajectory's tokens."""
    found: list[Tensor] = []
    for part in batch.packs:
        members = [advantages[member] for member in part.pack.members]
        found.append(torch.tensor(members, device=part.rewards.device).repeat_interleave(part.pack.lengths))
    return found
