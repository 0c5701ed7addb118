"""Value pretraining: before the policy learns, V learns what stored trajectories returned (SAO, arXiv 2607.07508).

The cold start of the value model is the bottleneck of the first updates. V is regressed on the Monte-Carlo returns
until the explained variance of held-out episodes no longer rises; the best weights are kept.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from feedback.schemas import Trajectory
from online_rl.adam import NamedAdam
from online_rl.batch import Batch, make_batch
from online_rl.settings import LearnerSettings
from online_rl.update_metrics import describe_values
from online_rl.value_model import Values, value_loss

FEWEST = 32
PARAMETER = "parameter/"
RISE = 1e-3
"""A smaller rise of the explained variance counts as none."""


class UnfitTrajectories(ValueError):
    """Nothing can be learned from these trajectories; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the training trajectories."""

    epoch: int
    """0 is before the first pass."""
    loss: float | None
    """Mean of the value loss over the pass, a token; None before the first."""
    explained_variance: float
    """Of the held-out episodes, after the pass."""


@dataclass(frozen=True, slots=True)
class Pretraining:
    """What `pretrain` did. The value model holds the weights of `best`."""

    curve: tuple[Epoch, ...]
    best: Epoch
    weights: dict[str, torch.Tensor]
    """Its trained parameters by name, float32."""
    train: int
    """Trajectories trained on."""
    held_out: int

    @property
    def before(self) -> Epoch:
        return self.curve[0]


def split_episodes(
    trajectories: Sequence[Trajectory], held_out: float, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """(training, held-out): whole episodes, a share `held_out` of them, drawn with `seed`.

    An episode is one key's: two keys may use the same name.
    """
    names = sorted({(t.api_key_id, t.episode_id) for t in trajectories})
    random.Random(seed).shuffle(names)
    apart = set(names[: max(1, round(held_out * len(names)))])
    training = [t for t in trajectories if (t.api_key_id, t.episode_id) not in apart]
    return training, [t for t in trajectories if (t.api_key_id, t.episode_id) in apart]


def pretrain(
    value: Values,
    trajectories: Sequence[Trajectory],
    settings: LearnerSettings,
    *,
    device: torch.device,
    held_out: float = 0.2,
    max_epochs: int = 30,
    patience: int = 3,
    on_batch: Callable[[int, int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Pretraining:
    """Train `value` until `patience` epochs in a row brought no rise, or `max_epochs` are made.

    `on_batch(done, total)` and `on_epoch` are told how far it is. Raises UnfitTrajectories.
    """
    training, apart = split_episodes(trajectories, held_out, settings.seed)
    check_fit(training, apart)
    cut = {"max_tokens": settings.micro_batch_tokens, "gamma": settings.gamma, "device": device}
    held = make_batch(apart, **cut)
    # The batches stay, so that a shared trunk computes its hidden states once; their order changes.
    rng = random.Random(settings.seed)
    rng.shuffle(training)
    size = settings.batch_size
    batches = [make_batch(training[at : at + size], **cut) for at in range(0, len(training), size)]
    adam = NamedAdam(
        value.parameters(),
        learning_rate=settings.value_learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.value_momentum,
    )
    best = Epoch(0, None, explain_variance(value, held))
    curve, weights = [best], _copy(adam)
    if on_epoch is not None:
        on_epoch(best)
    while len(curve) <= max_epochs and curve[-1].epoch - best.epoch < patience:
        rng.shuffle(batches)
        total = 0.0
        for done, batch in enumerate(batches, 1):
            total += _step(value, adam, batch, settings) * batch.total_tokens
            if on_batch is not None:
                on_batch(done, len(batches))
        epoch = Epoch(len(curve), total / sum(b.total_tokens for b in batches), explain_variance(value, held))
        curve.append(epoch)
        if epoch.explained_variance > best.explained_variance + RISE:
            best, weights = epoch, _copy(adam)
        if on_epoch is not None:
            on_epoch(epoch)
    adam.load(weights)
    parameters = {name.removeprefix(PARAMETER): weights[name] for name in weights if name.startswith(PARAMETER)}
    return Pretraining(tuple(curve), best, parameters, len(training), len(apart))


def check_fit(training: Sequence[Trajectory], held_out: Sequence[Trajectory]) -> None:
    """Raise UnfitTrajectories where they are too few, or returns that are to be explained do not differ."""
    count = len(training) + len(held_out)
    if count < FEWEST or not training:
        raise UnfitTrajectories(
            f"{count} usable trajectories of {'one episode' if not training else 'several episodes'} are too few to "
            f"learn from and to hold some out; at least {FEWEST} of several episodes are needed: "
            "let the service collect more, or give others with --from"
        )
    for name, part in (("training", training), ("held-out", held_out)):
        if len({trajectory.reward for trajectory in part}) == 1:
            raise UnfitTrajectories(
                f"all {len(part)} {name} trajectories have the reward {part[0].reward:g}, so there is nothing to tell "
                "apart; collect more feedback, or hold out a larger share with --held-out"
            )


@torch.no_grad()
def explain_variance(value: Values, batch: Batch) -> float:
    """``1 − Var(R − V)/Var(R)`` over all action tokens of the batch, whose returns are not all equal."""
    values = torch.cat([value.values(part.pack) for part in batch.packs])
    returns = torch.cat([part.returns for part in batch.packs])
    return describe_values(values=values, returns=returns, losses=(), norms=())["value/explained_variance"]


def _step(value: Values, adam: NamedAdam, batch: Batch, settings: LearnerSettings) -> float:
    adam.zero_grad()
    total = 0.0
    for part in batch.packs:
        loss = value_loss(value.values(part.pack), part.returns, total_tokens=batch.total_tokens)
        loss.backward()
        total += loss.item()
    norm = adam.clip(settings.max_grad_norm)
    if not torch.isfinite(torch.tensor([total, norm])).all():
        raise UnfitTrajectories(
            f"value loss {total}, gradient norm {norm}: lower learner.value_learning_rate, and look for rewards that "
            "are far too large"
        )
    adam.step()
    return total


def _copy(adam: NamedAdam) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in adam.tensors().items()}
