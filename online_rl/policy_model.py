"""The policy in training: a frozen base model and a LoRA adapter on all its linear layers."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from online_rl.base_model import run_trunk
from online_rl.packing import Pack
from online_rl.token_scores import score_tokens

ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the action tokens of a pack, float32 ``[T]`` each: log-probabilities, and entropies without gradient."""

    logprobs: Tensor
    entropies: Tensor


def add_lora(model: Any, *, rank: int, alpha: float, target: str | list[str], seed: int) -> PeftModel:
    """Adapters in float32 on the linear layers that `target` names; everything else is frozen.

    Embeddings and the output layer never get one: where they are tied, an adapter on one would change both.
    """
    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]: PEFT takes floats
        target_modules=target,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    assert isinstance(adapted, PeftModel)
    adapted.eval()
    for module in adapted.modules():
        if isinstance(module, LoraLayer):
            # PEFT would copy every input to float32; `mixed_precision` multiplies it as it is.
            module.cast_input_dtype_enabled = False
    return adapted


def mixed_precision(device: torch.device, dtype: torch.dtype) -> Any:
    """Products of float32 adapters with `dtype` activations in `dtype`; gradients reach the float32 weights."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


class PolicyModel:
    """Scores action tokens under the weights in training or under the base model (adapter switched off)."""

    def __init__(self, base: Any, *, rank: int, alpha: float, seed: int) -> None:
        self.base = base
        self.rank = rank
        self.device = next(base.parameters()).device
        self.dtype = next(base.parameters()).dtype
        self.vocabulary: int = base.get_input_embeddings().weight.shape[0]
        self.peft = add_lora(base, rank=rank, alpha=alpha, target="all-linear", seed=seed)

    def score(self, pack: Pack) -> Scores:
        """Under the weights in training, with gradient where it is enabled."""
        pack = pack.to(self.device)
        with mixed_precision(self.device, self.dtype):
            hidden = run_trunk(self.base, pack)[pack.context]
            head = self.base.get_output_embeddings()
            return Scores(*score_tokens(hidden.to(self.dtype), head.weight, head.bias, pack.targets))

    @torch.no_grad()
    def score_base(self, pack: Pack) -> Scores:
        """Under the base model: the reference of the KL guard."""
        with self.peft.disable_adapter():
            return self.score(pack)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in a fixed order."""
        return {name: parameter for name, parameter in self.peft.named_parameters() if parameter.requires_grad}

    def layers(self) -> Iterator[tuple[str, LoraLayer]]:
        """The adapted layers by their name in the base model."""
        for name, module in self.base.named_modules():
            if isinstance(module, LoraLayer):
                yield name, module

    @torch.no_grad()
    def deltas(self) -> Iterator[tuple[str, Tensor]]:
        """Name of the weight in the base model, and what the adapter adds to it (``scale · B A``, float32)."""
        for name, layer in self.layers():
            yield f"{name}.weight", layer.get_delta_weight(ADAPTER)  # pyright: ignore[reportAttributeAccessIssue]

    def save_adapter(self, folder: Path) -> None:
        """In PEFT's format, which vLLM and transformers load."""
        self.peft.save_pretrained(str(folder), save_embedding_layers=False)
