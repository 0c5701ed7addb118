"""Importance ratios ``r = π / μ`` of the policy in training to what sampled, and figures about them."""

import torch
from torch import Tensor

from online_rl.objectives.inputs import Metrics, ObjectiveInputs

LOG_RATIO_BOUND = 20.0
"""Largest |log r| that enters an objective whose gradient flows through the ratio; e^20 is beyond any trust region.
Where PPO does not clip (a ratio far above 1 on a negative advantage) the loss would else be infinite."""


EDGES = (0.5, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 2.0)
"""Of the histogram of ratios: dense around 1, where trust regions end."""


class MissingBehaviorLogprobs(ValueError):
    """The objective weighs by what the serving engine sampled with, and a trajectory does not carry it."""


def log_ratios(inputs: ObjectiveInputs) -> Tensor:
    """``logπ − logμ`` ``[T]``, with the gradient of logπ. Raises MissingBehaviorLogprobs."""
    if inputs.behavior_logprobs is None:
        raise MissingBehaviorLogprobs(
            "behavior_logprobs is missing and the objective weighs by it; "
            "learner.objective = asympo trains on such trajectories"
        )
    return inputs.policy_logprobs - inputs.behavior_logprobs


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """``r``, finite whatever the log-probabilities; beyond the bound it is constant, so no gradient flows."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def describe_ratios(log_ratio: Tensor, dropped: Tensor) -> Metrics:
    """Figures on how far the policy is from what sampled: both ``[T]``, T may be 0.

    `dropped` marks the tokens that the objective lets nothing flow from. ``behavior_kl`` estimates KL(μ ‖ π) by the
    never negative ``r − 1 − log r``.
    """
    if log_ratio.numel() == 0:
        return {"policy/mask_ratio": 0.0, "policy/ratio_mean": 1.0, "policy/ratio_max": 1.0, "policy/behavior_kl": 0.0}
    bounded = log_ratio.detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = bounded.exp()
    return {
        "policy/mask_ratio": float(dropped.float().mean()),
        "policy/ratio_mean": float(ratio.mean()),
        "policy/ratio_max": float(ratio.max()),
        "policy/behavior_kl": float((ratio - 1.0 - bounded).mean()),
        **_histogram(ratio),
    }


def _histogram(ratio: Tensor) -> Metrics:
    """``ratio/LOW_HIGH`` → share of the tokens with ``LOW ≤ r < HIGH``."""
    edges = torch.tensor(EDGES, dtype=ratio.dtype, device=ratio.device)
    counts = torch.bincount(torch.bucketize(ratio, edges, right=True), minlength=len(EDGES) + 1)
    bounds = zip((0.0, *EDGES), (*EDGES, float("inf")), strict=True)
    shares = (counts.float() / ratio.numel()).tolist()
    return {f"ratio/{low:g}_{high:g}": share for (low, high), share in zip(bounds, shares, strict=True)}


def describe_lag(inputs: ObjectiveInputs) -> Metrics:
    """The same figures for an objective that does without ratios, where the trajectories carry what they need."""
    if inputs.behavior_logprobs is None:
        return {}
    log_ratio = log_ratios(inputs)
    return describe_ratios(log_ratio, torch.zeros_like(log_ratio, dtype=torch.bool))
