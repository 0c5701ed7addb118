"""Which weights of a value model train, by parameter name, and how a frozen model gets some that do.

Attention is frozen (SAO, arXiv 2607.07508): on a dense model the MLP projections train, on a mixture of experts only
the experts. Norms, embeddings, the router and the output layer are frozen always; the head is no part of the base.
"""

import re
from collections.abc import Collection
from typing import Literal

from torch import nn

from online_rl.base_model import UnusableModel

ATTENTION = re.compile(r"\.(self_attn|self_attention|attention|attn)\.")
MLP = re.compile(r"\.(mlp|feed_forward|ffn|block_sparse_moe)\.")
EXPERTS = re.compile(r"\.(experts|shared_experts?)\.")

Attention = Literal["frozen", "trained"]


def find_value_weights(model: nn.Module, attention: Attention = "frozen") -> list[str]:
    """Names of the parameters of `model` that a value model trains, in the order of the model.

    Raises UnusableModel where the naming is not known.
    """
    names = [name for name, _ in model.named_parameters()]
    chosen = {name for name in names if EXPERTS.search(name)} or {name for name in names if MLP.search(name)}
    if not chosen:
        raise UnusableModel(
            "learner.value_model: no parameter lies in a block named mlp, feed_forward, ffn or block_sparse_moe; "
            "set it to shared_trunk, which needs none"
        )
    if attention == "trained":
        chosen |= {name for name in names if ATTENTION.search(name)}
    return [name for name in names if name in chosen]


def split_lora_targets(model: nn.Module, names: Collection[str]) -> tuple[list[str], list[str]]:
    """(linear layers, fused expert parameters) among the parameters `names`; biases and norms get no adapter.

    Experts are fused: one parameter ``[experts, out, in]`` a projection, which is no module that could be wrapped.
    """
    layers = [n for n, module in model.named_modules() if isinstance(module, nn.Linear) and f"{n}.weight" in names]
    fused = [name for name, parameter in model.named_parameters() if name in names and parameter.dim() == 3]
    return layers, fused


def train_copies(model: nn.Module, names: Collection[str]) -> dict[str, nn.Parameter]:
    """Let the parameters `names` of a frozen `model` train, and return them by name.

    They become tensors of their own: the frozen ones may be shared with another model.
    """
    chosen = {name: parameter for name, parameter in model.named_parameters() if name in names}
    for parameter in chosen.values():
        parameter.data = parameter.data.clone()
        parameter.requires_grad_(True)
    return chosen
