"""The value model's part of an update: K steps towards the returns, and the values that advantages are made of.

The forward pass of the first step also gives the values for the advantages, so that nothing is computed twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_rl.adam import NamedAdam
from online_rl.batch import Batch
from online_rl.packing import Pack
from online_rl.settings import LearnerSettings
from online_rl.update_errors import require_finite
from online_rl.update_metrics import describe_values
from online_rl.value_model import Values, value_loss


@dataclass(frozen=True, slots=True)
class ValueUpdate:
    """What the steps on one batch gave."""

    values: list[Tensor]
    """Of each pack, for the advantages: ``[T]``, or ``[U]`` where a pack has a stretch."""
    residuals: list[float | None]
    """Of the trajectories in their order: mean over the action tokens of return − value before the steps; None in the
    first update, whose values know nothing."""
    steps: int
    """Made, those of the warm-up too."""
    metrics: dict[str, float]


class ValueLearner:
    """Owns the value model and its optimiser."""

    def __init__(self, model: Values, settings: LearnerSettings) -> None:
        self.model = model
        self.is_ready = False
        """Whether the model was pretrained, which makes its warm-up unnecessary."""
        self._settings = settings
        self._optimizer = NamedAdam(
            model.parameters(),
            learning_rate=settings.value_learning_rate,
            weight_decay=settings.weight_decay,
            momentum=settings.value_momentum,
        )

    def update(self, batch: Batch, steps: int, *, first: bool) -> ValueUpdate:
        """Make `steps` steps (K), after the warm-up where it is the first update. Raises UpdateFailed."""
        warmup = self._settings.value_warmup if first and not self.is_ready else 0
        for _ in range(warmup):
            self._step(batch, [])
        stretched = self._stretched_values(batch)
        before: list[Tensor] = []
        losses: list[float] = []
        norms: list[float] = []
        for step in range(steps):
            values, loss, norm = self._step(batch, before)
            losses.append(loss)
            norms.append(norm)
            if step == 0:
                before = values
        if not before or self._settings.advantages_from == "after":
            after = self._values(part.pack for part in batch.packs)
            stretched = self._stretched_values(batch)
        else:
            after = before
        metrics = describe_values(
            values=torch.cat(before or after),
            returns=torch.cat([part.returns for part in batch.packs]),
            losses=losses,
            norms=norms,
        )
        return ValueUpdate(
            values=stretched or after,
            residuals=[None] * batch.total_trajectories if first or not before else find_residuals(batch, before),
            steps=warmup + steps,
            metrics=metrics,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name; the tensors in use."""
        return self._optimizer.tensors()

    def gradients(self) -> dict[str, Tensor]:
        """Of the last step, by the parameters' names."""
        return self._optimizer.gradients()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set what `tensors` returned before. Raises KeyError or RuntimeError where a name or shape differs."""
        self._optimizer.load(tensors)

    def load_model(self, parameters: Mapping[str, Tensor]) -> None:
        """Set the model's parameters; its optimiser begins anew. Raises KeyError or RuntimeError as `load`."""
        self._optimizer.load({f"parameter/{name}": tensor for name, tensor in parameters.items()})

    def forget_moments(self) -> None:
        """What the optimiser remembers of the past gradients."""
        self._optimizer.forget_moments()

    @torch.no_grad()
    def _values(self, packs: Iterable[Pack]) -> list[Tensor]:
        return [self.model.values(pack) for pack in packs]

    def _stretched_values(self, batch: Batch) -> list[Tensor]:
        """``[U]`` of each pack at observation tokens too; [] where advantages do not look at those."""
        return self._values(part.stretch.pack for part in batch.packs if part.stretch is not None)

    def _step(self, batch: Batch, before: Sequence[Tensor]) -> tuple[list[Tensor], float, float]:
        """One step; returns the values it started from, its loss and its gradient norm."""
        self._optimizer.zero_grad()
        found: list[Tensor] = []
        total = 0.0
        for index, part in enumerate(batch.packs):
            values = self.model.values(part.pack)
            loss = value_loss(
                values,
                part.returns,
                total_tokens=batch.total_tokens,
                before=before[index] if before else values.detach(),
                clip=self._settings.value_clip,
            )
            loss.backward()
            total += loss.item()
            found.append(values.detach())
        norm = self._optimizer.clip(self._settings.max_grad_norm)
        require_finite("value", total, norm)
        self._optimizer.step()
        return found, total, norm


def find_residuals(batch: Batch, values: Sequence[Tensor]) -> list[float | None]:
    """Mean of return − value over the action tokens of each trajectory, in the order of the batch."""
    found: list[float | None] = [None] * batch.total_trajectories
    for part, part_values in zip(batch.packs, values, strict=True):
        residuals = (part.returns - part_values).split(part.pack.lengths.tolist())
        for member, residual in zip(part.pack.members, residuals, strict=True):
            found[member] = float(residual.mean())
    return found
