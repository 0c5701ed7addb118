"""The value model: what return the state before each action token promises.

A network of its own that starts from the policy's base, with attention frozen (SAO, arXiv 2607.07508, found a value
model with all parameters to do worse; see `trained_weights`) and a scalar head in float32. `shared_trunk` holds the
cheap one without a network of its own.
"""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from online_rl.base_model import run_trunk
from online_rl.packing import Pack
from online_rl.policy_model import add_lora
from online_rl.trained_weights import Attention, find_value_weights, split_lora_targets, train_copies

LEVEL_SCALE = 100.0
"""A step of AdamW moves a parameter by about the learning rate: at 5e-4 the level by 0.05, K times an update."""


class Values(Protocol):
    """What the trainer needs of a value model."""

    def values(self, pack: Pack) -> Tensor:
        """float32 ``[T]``, with gradient where it is enabled."""
        ...

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in a fixed order."""
        ...


class ValueModel:
    """One value for each action token, from the hidden state of the token before it: it never sees the token."""

    def __init__(
        self,
        base: Any,
        *,
        rank: int,
        alpha: float,
        seed: int,
        weights: Literal["lora", "full"] = "lora",
        attention: Attention = "frozen",
    ) -> None:
        """Adapters on the weights that train (``lora``), or those weights themselves (``full``, on own tensors).

        Raises UnusableModel.
        """
        self.base = base
        self.device = next(base.parameters()).device
        self.dtype = next(base.parameters()).dtype
        names = find_value_weights(base, attention)
        if weights == "full":
            self._trunk = train_copies(base, names)
        else:
            layers, fused = split_lora_targets(base, names)
            self.peft = add_lora(base, rank=rank, alpha=alpha, target=layers, parameters=fused, seed=seed)
            self._trunk = {name: p for name, p in self.peft.named_parameters() if p.requires_grad}
        self.width: int = base.get_input_embeddings().weight.shape[1]
        self.head = ValueHead(self.width, self.device)

    def values(self, pack: Pack) -> Tensor:
        """float32 ``[T]``, with gradient where it is enabled. At the start all 0."""
        pack = pack.to(self.device)
        return self.head(normalize(run_trunk(self.base, pack)[pack.context]))

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in a fixed order."""
        return self._trunk | {f"head.{name}": parameter for name, parameter in self.head.named_parameters()}


class ValueHead(nn.Module):
    """``w · h + LEVEL_SCALE · level`` in float32, which gives 0 until it is trained.

    The level of the rewards moves by tenths when users change their taste, and has to be followed within a few steps;
    what tells one state from another is learned over hundreds. One step size for both lets the trunk learn the level,
    and then all its hidden states become alike (docs/adr/0005-the-level-of-values-is-a-parameter.md).
    """

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width, device=device))
        self.level = nn.Parameter(torch.zeros(1, device=device))

    def forward(self, features: Tensor) -> Tensor:
        """Features ``[T, H]`` of about unit variance → ``[T]``."""
        return features @ self.weight[0] + LEVEL_SCALE * self.level


def normalize(hidden: Tensor) -> Tensor:
    """Hidden states ``[T, H]`` in float32, scaled to a mean square of 1 each, whatever the model's scale."""
    return nn.functional.normalize(hidden.float(), dim=-1) * hidden.shape[-1] ** 0.5


def value_loss(
    values: Tensor, returns: Tensor, *, total_tokens: int, before: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Half the squared error to the Monte-Carlo returns, divided by the action tokens of the whole batch.

    With `clip`, a value counts only within ±clip of what it was `before` the update: the larger of the two errors
    is taken, as in PPO. All ``[T]``; returns a scalar.
    """
    error = (values - returns).square()
    if clip is not None:
        if before is None:
            raise ValueError("clipping needs the values before the update")
        error = torch.maximum(error, (before + (values - before).clamp(-clip, clip) - returns).square())
    return 0.5 * error.sum() / total_tokens
