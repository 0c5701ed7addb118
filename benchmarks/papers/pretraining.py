"""The value model learns the returns of the warm policy before the policy moves: SAO's remedy for the cold start."""

from collections.abc import Sequence

from feedback.schemas import Trajectory
from online_rl.adam import NamedAdam
from online_rl.batch import make_batch
from online_rl.settings import LearnerSettings
from online_rl.value_model import ValueModel, value_loss

EPOCHS = 2


def pretrain_value(value: ValueModel, trajectories: Sequence[Trajectory], settings: LearnerSettings) -> None:
    """Regress `value` on the returns of `trajectories` of a fixed policy: batches in order, `EPOCHS` times over."""
    optimizer = NamedAdam(
        value.parameters(), learning_rate=settings.value_learning_rate, weight_decay=settings.weight_decay
    )
    size = settings.batch_size
    for start in [*range(0, len(trajectories), size)] * EPOCHS:
        batch = make_batch(
            trajectories[start : start + size], max_tokens=settings.micro_batch_tokens, gamma=settings.gamma
        )
        optimizer.zero_grad()
        for part in batch.packs:
            value_loss(value.values(part.pack), part.returns, total_tokens=batch.total_tokens).backward()
        optimizer.clip(settings.max_grad_norm)
        optimizer.step()
