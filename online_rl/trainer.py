"""One update: value updates, then advantages, then one policy update.

::

    batch ─► value model  V ─┬─ K × (squared error to the return ─► step)
                             ▼ values of the first pass ("before")
                                      advantages = GAE(r, V), or r − baseline where there is no value model
                             ▼
     base ─► policy      logπ ─► objective + β·KL(π ‖ base) ─► step

The policy's forward pass also gives the log-probabilities of the KL guard and of all figures, as that of the first
value update gives the values: nothing is computed twice.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feedback.schemas import Trajectory
from online_rl.adam import NamedAdam
from online_rl.baselines import Baseline, BaselineState, make_baseline
from online_rl.batch import Batch, TrainingPack, make_batch
from online_rl.batch_advantages import center, estimate_gae, spread_advantages
from online_rl.kl_guard import guard_weight
from online_rl.objectives import Objective, ObjectiveInputs, make_objective
from online_rl.policy_model import Policy
from online_rl.schedule import schedule_learning_rate
from online_rl.settings import LearnerSettings
from online_rl.token_scores import Scores
from online_rl.update_errors import UpdateFailed, UpdateUnwanted, require_finite
from online_rl.update_metrics import describe_groups, describe_policy, describe_trajectories
from online_rl.value_learner import ValueLearner
from online_rl.value_model import Values


@dataclass
class Counters:
    """How far training has come; part of every checkpoint."""

    updates: int = 0
    value_updates: int = 0
    entropy_skips: int = 0
    schedule_start: int = 0
    """The update at which the policy's schedule began (anew)."""
    kl_to_base: float = 0.0
    """Mean of KL(π ‖ base) over the action tokens of the last update's batch, before that update; nats a token."""


class Trainer:
    """Owns the models and their optimisers. `update` either completes or leaves everything as it was."""

    def __init__(self, policy: Policy, value: Values | None, settings: LearnerSettings) -> None:
        """Keeps no value model where the objective needs none. Raises ValueError where it needs one and has none."""
        self.policy = policy
        self.settings = settings
        self.objective: Objective = make_objective(settings)
        self.baseline: Baseline | None = make_baseline(settings)
        if self.objective.needs.value_model and value is None:
            raise ValueError(f"learner.objective = {settings.objective} needs a value model and got none")
        self.value: ValueLearner | None = None
        if value is not None and self.objective.needs.value_model:
            self.value = ValueLearner(value, settings)
        self.counters = Counters()
        self.residuals: list[float | None] = []
        """Of the trajectories of the last update, see `ValueUpdate`; None of each without a value model."""
        self._policy_optimizer = NamedAdam(
            policy.parameters(), learning_rate=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def update(
        self,
        trajectories: Sequence[Trajectory],
        *,
        current_version: int = 0,
        value_updates: int | None = None,
        unwanted: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Train on `trajectories` once; returns figures by name (`area/name`). Raises UpdateFailed and UpdateUnwanted.

        `value_updates` is K of this update, `learner.value_updates` where it is not given. `unwanted` is asked at the
        end, which is seconds later: the update is undone where it says so.
        """
        saved = {name: tensor.clone() for name, tensor in self.tensors().items()}
        counters = Counters(**vars(self.counters))
        baseline = self.baseline_state()
        try:
            metrics = self._update(trajectories, current_version, value_updates)
            if unwanted():
                raise UpdateUnwanted
            return metrics
        except (UpdateFailed, UpdateUnwanted):
            self.load(saved)
            self.counters = counters
            self.load_baseline(baseline)
            raise

    def _update(
        self, trajectories: Sequence[Trajectory], current_version: int, value_updates: int | None
    ) -> dict[str, float]:
        started = time.perf_counter()
        batch = make_batch(
            trajectories,
            max_tokens=self.settings.micro_batch_tokens,
            gamma=self.settings.gamma,
            device=self.policy.device,
            observations=self.settings.gae == "plain" and self.value is not None,
        )
        advantages, value_metrics = self._estimate_advantages(batch, trajectories, value_updates)
        middle = time.perf_counter()
        policy_metrics = self._update_policy(batch, advantages)
        self.counters.updates += 1
        ended = time.perf_counter()
        seconds = {
            "seconds/value": middle - started,
            "seconds/policy": ended - middle,
            "seconds/update": ended - started,
        }
        described = describe_trajectories(trajectories, current_version)
        if self.objective.needs.groups:
            described |= describe_groups(trajectories)
        return described | value_metrics | policy_metrics | seconds

    def _estimate_advantages(
        self, batch: Batch, trajectories: Sequence[Trajectory], value_updates: int | None
    ) -> tuple[list[Tensor], dict[str, float]]:
        """``[T]`` of each pack: by the value model, which learns first, or against the baseline of the whole batch."""
        if self.baseline is None:
            assert self.value is not None
            steps = self.settings.value_updates if value_updates is None else value_updates
            learned = self.value.update(batch, steps, first=self.counters.updates == 0)
            self.counters.value_updates += learned.steps
            self.residuals = learned.residuals
            pairs = zip(batch.packs, learned.values, strict=True)
            advantages = [estimate_gae(part, values, self.settings) for part, values in pairs]
            if not self.settings.center_advantages:
                return advantages, learned.metrics
            centred, offset = center(advantages)
            return centred, learned.metrics | {"advantage/offset": offset}
        self.residuals = [None] * batch.total_trajectories
        if not all(math.isfinite(trajectory.reward) for trajectory in trajectories):
            raise UpdateFailed("a reward is not finite; the step was not taken")
        return spread_advantages(batch, self.baseline.advantages(trajectories)), {}

    def _update_policy(self, batch: Batch, all_advantages: Sequence[Tensor]) -> dict[str, float]:
        self._policy_optimizer.zero_grad()
        parts: list[PolicyPart] = []
        total = 0.0
        settings = self.settings
        guard = guard_weight(self.counters.kl_to_base, coefficient=settings.kl_coefficient, free=settings.kl_free)
        for part, advantages in zip(batch.packs, all_advantages, strict=True):
            scores = self.policy.score(part.pack, self.policy.base_hidden(part.pack))
            objective, _ = self.objective.loss(objective_inputs(part, scores.logprobs, advantages, batch))
            # Exact over the vocabulary, not estimated on the sampled tokens: see docs/adr/0001-exact-kl-guard.md.
            loss = objective + guard * scores.kl.sum() / batch.total_tokens
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
        self.counters.kl_to_base = metrics["policy/kl_to_base"]
        metrics |= self._describe_objective(parts, batch)
        rate = schedule_learning_rate(self.counters.updates - self.counters.schedule_start, self.settings)
        metrics |= {"policy/loss": total, "policy/grad_norm": norm, "policy/skipped": 0.0, "policy/learning_rate": rate}
        metrics["policy/kl_weight"] = guard
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
            lengths=torch.cat([part.source.pack.lengths for part in parts]),
            total_tokens=batch.total_tokens,
            total_trajectories=batch.total_trajectories,
        )
        return self.objective.loss(inputs)[1]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name; the tensors in use."""
        policy = {f"policy/{name}": tensor for name, tensor in self._policy_optimizer.tensors().items()}
        if self.value is None:
            return policy
        return policy | {f"value/{name}": tensor for name, tensor in self.value.tensors().items()}

    def take_back(self, kept: float) -> None:
        """Move the policy towards the base model, so that the share `kept` of what was learned stays."""
        self._policy_optimizer.draw(self.policy.base_parameters(), kept)

    def restart_schedule(self) -> None:
        """Let the policy's step be as at the start, and fall from there again."""
        self.counters.schedule_start = self.counters.updates

    def forget_moments(self) -> None:
        """Of all optimisers: what they remember of the past gradients."""
        self._policy_optimizer.forget_moments()
        if self.value is not None:
            self.value.forget_moments()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set what `tensors` returned before. Raises KeyError or RuntimeError where a name or shape differs."""
        for prefix, trained in (("policy/", self._policy_optimizer), ("value/", self.value)):
            if trained is not None:
                trained.load({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})

    def baseline_state(self) -> BaselineState:
        """What the baseline remembers of past rewards, JSON-able; part of every checkpoint beside `tensors`."""
        return {} if self.baseline is None else self.baseline.state()

    def load_baseline(self, state: BaselineState) -> None:
        """Set what `baseline_state` returned before. Raises KeyError or TypeError where it is another objective's."""
        if self.baseline is not None:
            self.baseline.load(state)


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
        lengths=part.pack.lengths,
        total_tokens=batch.total_tokens,
        total_trajectories=batch.total_trajectories,
    )
