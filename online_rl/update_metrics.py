"""The figures of one update, by name (`area/name`). Pure."""

import statistics
from collections.abc import Sequence

from torch import Tensor

from feedback.schemas import Trajectory
from online_rl.groups import count_short_groups


def describe_trajectories(trajectories: Sequence[Trajectory], current_version: int) -> dict[str, float]:
    """Rewards, staleness (in versions) and sizes of the batch."""
    rewards = [trajectory.reward for trajectory in trajectories]
    staleness = [current_version - t.oldest_version for t in trajectories if t.oldest_version is not None] or [0]
    names = sorted({name for trajectory in trajectories for name in trajectory.metrics})
    by_metric = {
        f"reward/metric/{name}": statistics.fmean(t.metrics[name] for t in trajectories if name in t.metrics)
        for name in names
    }
    return {
        "reward/mean": statistics.fmean(rewards),
        "reward/std": statistics.pstdev(rewards),
        **by_metric,
        "batch/trajectories": float(len(trajectories)),
        "batch/tokens": float(sum(len(trajectory.token_ids) for trajectory in trajectories)),
        "batch/action_tokens": float(sum(sum(trajectory.action_mask) for trajectory in trajectories)),
        "staleness/mean": statistics.fmean(staleness),
        "staleness/max": float(max(staleness)),
    }


def describe_groups(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Groups in the batch, and those that came without all of their members."""
    groups, short = count_short_groups(trajectories)
    return {"batch/groups": float(groups), "batch/short_groups": float(short)}


def describe_values(
    *, values: Tensor, returns: Tensor, losses: Sequence[float], norms: Sequence[float]
) -> dict[str, float]:
    """`values` before the update and `returns`, ``[T]``. Explained variance is ``1 − Var(R − V)/Var(R)``.

    It is left out where all returns are equal, which leaves it undefined.
    """
    metrics = {"value/mean": float(values.mean()), "value/updates": float(len(losses))}
    if losses:
        metrics |= {"value/loss": losses[0], "value/loss_last": losses[-1], "value/grad_norm": norms[-1]}
    variance = float(returns.var(unbiased=False))
    if variance > 0:
        metrics["value/explained_variance"] = 1.0 - float((returns - values).var(unbiased=False)) / variance
    return metrics


def describe_policy(
    *, logprobs: Tensor, base_logprobs: Tensor, kl: Tensor, entropies: Tensor, advantages: Tensor
) -> dict[str, float]:
    """All ``[T]``. ``kl_to_base`` is the mean of KL(π ‖ base) over the vocabulary, nats a token.

    ``base_logprob`` says how natural the answers are to the base model: gibberish makes it fall.
    """
    return {
        "policy/logprob": float(logprobs.mean()),
        "policy/base_logprob": float(base_logprobs.mean()),
        "policy/kl_to_base": float(kl.mean()),
        "policy/entropy": float(entropies.mean()),
        "advantage/mean": float(advantages.mean()),
        "advantage/std": float(advantages.std(unbiased=False)),
    }
