"""Returns and advantages over action tokens only.

Everything here is flat: the action tokens of all trajectories one after the other, ``T`` in all, with
``lengths[B]`` action tokens of each trajectory. Prompt and observation tokens do not appear, so the token after the
last token of one action *is* the first token of the next one: that is what skip-observation means.
"""

import torch
from torch import Tensor


def compute_advantages(values: Tensor, rewards: Tensor, lengths: Tensor, *, gamma: float, alpha: float) -> Tensor:
    """Skip-observation GAE with a length-adaptive λ (SAO, arXiv 2607.07508).

    ``δ_t = r_t + γ V(t+1) − V(t)``, ``A_t = δ_t + γ λ A_{t+1}``, over the action tokens of one trajectory; the value
    after its last action token is 0, and ``λ = 1 − 1/(α·l)`` for l action tokens (never below 0).

    `values` and `rewards` are float ``[T]``, `lengths` is long ``[B]`` and sums to T. Returns ``[T]``.
    """
    following = _shift(_pad(values, lengths), 1)
    deltas = _pad(rewards, lengths) + gamma * following - _pad(values, lengths)
    decay = gamma * (1.0 - 1.0 / (alpha * lengths.to(values.dtype))).clamp(min=0.0)
    return _flatten(_discounted_suffix_sums(deltas, decay), lengths)


def compute_plain_advantages(
    values: Tensor, rewards: Tensor, is_action: Tensor, lengths: Tensor, *, gamma: float, alpha: float
) -> Tensor:
    """GAE over every token behind the prompt: observation tokens are steps too, with reward 0. For the ablation.

    `values` float ``[U]`` at all tokens from each trajectory's first action token to its last, `is_action` bool
    ``[U]`` with T True, `lengths` long ``[B]`` sums to U; `rewards` ``[T]``. Returns ``[T]``.
    """
    everywhere = values.new_zeros(values.shape)
    everywhere[is_action] = rewards.to(values.dtype)
    return compute_advantages(values, everywhere, lengths, gamma=gamma, alpha=alpha)[is_action]


def compute_step_advantages(
    values: Tensor, rewards: Tensor, starts: Tensor, lengths: Tensor, *, gamma: float, alpha: float
) -> Tensor:
    """GAE over whole actions: one value, at its first token, and one advantage for all its tokens. For the ablation.

    `starts` bool ``[T]`` marks the first token of each action; the first token of a trajectory is always one.
    `values` and `rewards` are ``[T]``, `lengths` ``[B]``. Returns ``[T]``.
    """
    step = starts.long().cumsum(0) - 1
    sizes = torch.bincount(step)
    steps = torch.segment_reduce(starts.to(values.dtype), "sum", lengths=lengths).long()
    earned = torch.segment_reduce(rewards, "sum", lengths=sizes)
    return compute_advantages(values[starts], earned, steps, gamma=gamma, alpha=alpha)[step]


def compute_returns(rewards: Tensor, lengths: Tensor, *, gamma: float) -> Tensor:
    """Monte-Carlo returns ``R_t = r_t + γ R_{t+1}`` over action tokens. ``[T]``, ``[B]`` → ``[T]``."""
    decay = torch.full((len(lengths),), gamma, dtype=rewards.dtype, device=rewards.device)
    return _flatten(_discounted_suffix_sums(_pad(rewards, lengths), decay), lengths)


def place_rewards(final: Tensor, lengths: Tensor) -> Tensor:
    """Per-token rewards: 0 but on the last action token of each trajectory. ``[B]``, ``[B]`` → ``[T]``."""
    rewards = final.new_zeros(int(lengths.sum()))
    rewards[lengths.cumsum(0) - 1] = final
    return rewards


def _discounted_suffix_sums(x: Tensor, decay: Tensor) -> Tensor:
    """``y_t = x_t + c y_{t+1}`` for each row of ``x[B, N]`` with ``c = decay[B]``, in log₂ N steps by doubling.

    After the step of width s, ``y_t`` holds ``Σ_{k<2s} c^k x_{t+k}``.
    """
    factor = decay[:, None]
    width = 1
    while width < x.shape[1]:
        x = x + factor * _shift(x, width)
        factor = factor * factor
        width *= 2
    return x


def _shift(x: Tensor, by: int) -> Tensor:
    """Move the columns of ``x[B, N]`` to the left by `by`, filling with 0."""
    return torch.nn.functional.pad(x[:, by:], (0, min(by, x.shape[1])))


def _mask(lengths: Tensor) -> Tensor:
    return torch.arange(int(lengths.max()), device=lengths.device)[None, :] < lengths[:, None]


def _pad(flat: Tensor, lengths: Tensor) -> Tensor:
    """``[T]`` → ``[B, max length]``, zeros behind."""
    mask = _mask(lengths)
    padded = flat.new_zeros(mask.shape)
    padded[mask] = flat
    return padded


def _flatten(padded: Tensor, lengths: Tensor) -> Tensor:
    return padded[_mask(lengths)]
