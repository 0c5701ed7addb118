"""One update: value updates, then advantages, then one policy update.

::

    batch ─► value model  V ─┬─ K × (squared error to the return ─► step)
                             ▼ values of the first pass ("before")
                                      advantages = GAE(r, V)
                             ▼
     base ─► policy      logπ ─► objective + β·KL(π ‖ base) ─► step

The forward pass of the first value update also gives the values for the advantages, and the policy's forward pass
also gives the log-probabilities of the KL guard and of all figures: nothing is computed twice.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feedback.schemas import Trajectory
from online_rl.adam import NamedAdam
from online_rl.advantages import compute_advantages
from online_rl.batch import Batch, TrainingPack, make_batch
from online_rl.objectives import Objective, ObjectiveInputs, make_objective
from online_rl.policy_model import Policy
from online_rl.schedule import schedule_learning_rate
from online_rl.settings import LearnerSettings
from online_rl.token_scores import Scores
from online_rl.update_metrics import describe_policy, describe_trajectories, describe_values
from online_rl.value_model import Values, value_loss


class UpdateFailed(RuntimeError):
    """A loss or a gradient was not finite. Weights and optimisers are as before the update."""


@dataclass
class Counters:
    """How far training has come; part of every checkpoint."""

    updates: int = 0
    value_updates: int = 0
    entropy_skips: int = 0


class Trainer:
    """Owns both models and their optimisers. `update` either completes or leaves everything as it was."""

    def __init__(self, policy: Policy, value: Values, settings: LearnerSettings) -> None:
        self.policy = policy
        self.value = value
        self.settings = settings
        self.objective: Objective = make_objective(settings)
        self.counters = Counters()
        self.value_is_ready = False
        """Whether the value model was pretrained, which makes its warm-up unnecessary."""
        self.residuals: list[float | None] = []
        """Of the trajectories of the last update, in their order: mean over the action tokens of return − value before
        the update; None in the first update, whose values know nothing."""
        self.kl_to_base = 0.0
        """Of the last update's batch, before the update: mean of logπ − logπ_base, nats a token."""
        decay = settings.weight_decay
        self._policy_optimizer = NamedAdam(
            policy.parameters(), learning_rate=settings.learning_rate, weight_decay=decay
        )
        self._value_optimizer = NamedAdam(
            value.parameters(), learning_rate=settings.value_learning_rate, weight_decay=decay
        )

    def update(self, trajectories: Sequence[Trajectory], *, current_version: int = 0) -> dict[str, float]:
        """Train on `trajectories` once; returns figures by name (`area/name`). Raises UpdateFailed."""
        saved = {name: tensor.clone() for name, tensor in self.tensors().items()}
        counters = Counters(**vars(self.counters))
        try:
            return self._update(trajectories, current_version)
        except UpdateFailed:
            self.load(saved)
            self.counters = counters
            raise

    def _update(self, trajectories: Sequence[Trajectory], current_version: int) -> dict[str, float]:
        started = time.perf_counter()
        batch = make_batch(
            trajectories,
            max_tokens=self.settings.micro_batch_tokens,
            gamma=self.settings.gamma,
            device=self.policy.device,
        )
        values, value_metrics = self._update_value(batch)
        middle = time.perf_counter()
        policy_metrics = self._update_policy(batch, values)
        self.counters.updates += 1
        ended = time.perf_counter()
        seconds = {
            "seconds/value": middle - started,
            "seconds/policy": ended - middle,
            "seconds/update": ended - started,
        }
        return describe_trajectories(trajectories, current_version) | value_metrics | policy_metrics | seconds

    def _update_value(self, batch: Batch) -> tuple[list[Tensor], dict[str, float]]:
        """K value updates, after the warm-up where it is the first; values ``[T]`` of each pack for the advantages."""
        if self.counters.updates == 0 and not self.value_is_ready:
            for _ in range(self.settings.value_warmup):
                self._step_value(batch, [])
        before: list[Tensor] = []
        losses: list[float] = []
        norms: list[float] = []
        for step in range(self.settings.value_updates):
            values, loss, norm = self._step_value(batch, before)
            losses.append(loss)
            norms.append(norm)
            if step == 0:
                before = values
        if not before or self.settings.advantages_from == "after":
            with torch.no_grad():
                after = [self.value.values(part.pack) for part in batch.packs]
        else:
            after = before
        self.residuals = (
            find_residuals(batch, before) if self.counters.updates and before else [None] * batch.total_trajectories
        )
        metrics = describe_values(
            values=torch.cat(before or after),
            returns=torch.cat([part.returns for part in batch.packs]),
            losses=losses,
            norms=norms,
        )
        return after, metrics

    def _step_value(self, batch: Batch, before: Sequence[Tensor]) -> tuple[list[Tensor], float, float]:
        """One value update; returns the values it started from, its loss and its gradient norm."""
        self._value_optimizer.zero_grad()
        found: list[Tensor] = []
        total = 0.0
        for index, part in enumerate(batch.packs):
            values = self.value.values(part.pack)
            loss = value_loss(
                values,
                part.returns,
                total_tokens=batch.total_tokens,
                before=before[index] if before else values.detach(),
                clip=self.settings.value_clip,
            )
            loss.backward()
            total += loss.item()
            found.append(values.detach())
        norm = self._value_optimizer.clip(self.settings.max_grad_norm)
        require_finite("value", total, norm)
        self._value_optimizer.step()
        self.counters.value_updates += 1
        return found, total, norm

    def _update_policy(self, batch: Batch, values: Sequence[Tensor]) -> dict[str, float]:
        self._policy_optimizer.zero_grad()
        parts: list[PolicyPart] = []
        total = 0.0
        for part, part_values in zip(batch.packs, values, strict=True):
            scores = self.policy.score(part.pack, self.policy.base_hidden(part.pack))
            advantages = compute_advantages(
                part_values,
                part.token_rewards,
                part.pack.lengths,
                gamma=self.settings.gamma,
                alpha=self.settings.gae_alpha,
            )
            objective, _ = self.objective.loss(objective_inputs(part, scores.logprobs, advantages, batch))
            # Exact over the vocabulary, not estimated on the sampled tokens: see docs/adr/0001-exact-kl-guard.md.
            loss = objective + self.settings.kl_coefficient * scores.kl.sum() / batch.total_tokens
            loss.backward()
            total += loss.item()
            parts.append(PolicyPart(detach_scores(scores), advantages, part))
        norm = self._policy_optimizer.clip(self.settings.max_grad_norm)
        require_finite("policy", total, norm)
        metrics = describe_policy(
            logprobs=torch.cat([part.scores.logprobs for part in parts]),
            base_logprobs=torch.cat([part.scores.reference_logprobs for part in parts]),
            kl=torch.cat([part.scores.kl for part in parts]),
            entropies=torch.cat([part.scores.entropies for part in parts]),
            advantages=torch.cat([part.advantages for part in parts]),
        )
        self.kl_to_base = metrics["policy/kl_to_base"]
        metrics |= self._describe_objective(parts, batch)
        rate = schedule_learning_rate(self.counters.updates, self.settings)
        metrics |= {"policy/loss": total, "policy/grad_norm": norm, "policy/skipped": 0.0, "policy/learning_rate": rate}
        if metrics["policy/entropy"] < self.settings.entropy_floor:
            self.counters.entropy_skips += 1
            return metrics | {"policy/skipped": 1.0}
        self._policy_optimizer.set_learning_rate(rate)
        self._policy_optimizer.step()
        return metrics

    @torch.no_grad()
    def _describe_objective(self, parts: "Sequence[PolicyPart]", batch: Batch) -> dict[str, float]:
        """The objective's figures of the whole batch, from the log-probabilities that are there already."""
        behavior = [part.source.behavior_logprobs for part in parts]
        inputs = ObjectiveInputs(
            policy_logprobs=torch.cat([part.scores.logprobs for part in parts]),
            behavior_logprobs=None
            if any(b is None for b in behavior)
            else torch.cat([b for b in behavior if b is not None]),
            advantages=torch.cat([part.advantages for part in parts]),
            rewards=torch.cat([part.source.rewards for part in parts]),
            lengths=torch.cat([part.source.pack.lengths for part in parts]),
            groups=torch.cat([part.source.groups for part in parts]),
            total_tokens=batch.total_tokens,
            total_trajectories=batch.total_trajectories,
        )
        return self.objective.loss(inputs)[1]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name; the tensors in use."""
        policy = {f"policy/{name}": tensor for name, tensor in self._policy_optimizer.tensors().items()}
        value = {f"value/{name}": tensor for name, tensor in self._value_optimizer.tensors().items()}
        return policy | value

    def load_value(self, parameters: Mapping[str, Tensor]) -> None:
        """Set the value model's parameters; its optimiser begins anew. Raises KeyError or RuntimeError as `load`."""
        self._value_optimizer.load({f"parameter/{name}": tensor for name, tensor in parameters.items()})

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set what `tensors` returned before. Raises KeyError or RuntimeError where a name or shape differs."""
        for prefix, optimizer in (("policy/", self._policy_optimizer), ("value/", self._value_optimizer)):
            optimizer.load({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """What the policy update of one pack computed, detached."""

    scores: Scores
    advantages: Tensor
    """``[T]``."""
    source: TrainingPack


def detach_scores(scores: Scores) -> Scores:
    """Without the graph, so that a pack's activations can go before the next pack."""
    return replace(scores, logprobs=scores.logprobs.detach(), kl=scores.kl.detach())


def objective_inputs(part: TrainingPack, logprobs: Tensor, advantages: Tensor, batch: Batch) -> ObjectiveInputs:
    return ObjectiveInputs(
        policy_logprobs=logprobs,
        behavior_logprobs=part.behavior_logprobs,
        advantages=advantages,
        rewards=part.rewards,
        lengths=part.pack.lengths,
        groups=part.groups,
        total_tokens=batch.total_tokens,
        total_trajectories=batch.total_trajectories,
    )


def find_residuals(batch: Batch, values: Sequence[Tensor]) -> list[float | None]:
    """Mean of return − value over the action tokens of each trajectory, in the order of the batch."""
    found: list[float | None] = [None] * batch.total_trajectories
    for part, part_values in zip(batch.packs, values, strict=True):
        residuals = (part.returns - part_values).split(part.pack.lengths.tolist())
        for member, residual in zip(part.pack.members, residuals, strict=True):
            found[member] = float(residual.mean())
    return found


def require_finite(area: str, loss: float, norm: float) -> None:
    """Raise UpdateFailed unless both are finite."""
    if not torch.isfinite(torch.tensor([loss, norm])).all():
        raise UpdateFailed(f"{area} update: loss {loss}, gradient norm {norm}; the step was not taken")
