"""The value model: what return the state before each action token promises.

A network of its own that starts from the policy's base. Attention is frozen: adapters sit on the MLP projections
only, beside a scalar head in float32 (SAO, arXiv 2607.07508, found a value model with all parameters to do worse).
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

from online_rl.base_model import UnusableModel, run_trunk
from online_rl.packing import Pack
from online_rl.policy_model import add_lora

MLP = re.compile(r"\.(mlp|feed_forward|ffn|block_sparse_moe)\.")


def find_mlp_layers(model: nn.Module) -> list[str]:
    """Names of the linear layers of the MLP blocks. Raises UnusableModel where the naming is not known."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and MLP.search(name)]
    if not names:
        raise UnusableModel("no linear layer lies in a block named mlp, feed_forward, ffn or block_sparse_moe")
    return names


class ValueModel:
    """One value for each action token, from the hidden state of the token before it: it never sees the token."""

    def __init__(self, base: Any, *, rank: int, alpha: float, seed: int) -> None:
        self.base = base
        self.device = next(base.parameters()).device
        self.dtype = next(base.parameters()).dtype
        self.peft = add_lora(base, rank=rank, alpha=alpha, target=find_mlp_layers(base), seed=seed)
        self.width: int = base.get_input_embeddings().weight.shape[1]
        self.head = nn.Linear(self.width, 1, device=self.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def values(self, pack: Pack) -> Tensor:
        """float32 ``[T]``, with gradient where it is enabled. At the start all 0."""
        pack = pack.to(self.device)
        hidden = run_trunk(self.base, pack)[pack.context].float()
        # Unit length, so that one step of the head moves a value by about the learning rate times √width, whatever
        # the scale of the base model's hidden states.
        return self.head(nn.functional.normalize(hidden, dim=-1))[:, 0]

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in a fixed order."""
        adapters = {name: parameter for name, parameter in self.peft.named_parameters() if parameter.requires_grad}
        return adapters | {f"head.{name}": parameter for name, parameter in self.head.named_parameters()}


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
