"""The policy in training: a frozen base model and a LoRA adapter on all its linear layers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from online_rl.base_model import run_trunk
from online_rl.lora_linear import use_lean_products
from online_rl.packing import Pack
from online_rl.token_scores import Scores, score_tokens

ADAPTER = "default"


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
    use_lean_products(adapted)
    return adapted


class PolicyModel:
    """Scores action tokens under the weights in training or under the base model (adapter switched off)."""

    def __init__(self, base: Any, *, rank: int, alpha: float, seed: int) -> None:
        self.base = base
        self.rank = rank
        self.device = next(base.parameters()).device
        self.dtype = next(base.parameters()).dtype
        self.vocabulary: int = base.get_input_embeddings().weight.shape[0]
        self.peft = add_lora(base, rank=rank, alpha=alpha, target="all-linear", seed=seed)

    def score(self, pack: Pack, reference: Tensor | None = None) -> Scores:
        """Under the weights in training, with gradient where it is enabled.

        `reference` ``[T, H]``, of `base_hidden`, adds the divergence from the base model.
        """
        pack = pack.to(self.device)
        head = self.base.get_output_embeddings()
        return score_tokens(self._hidden(pack), head.weight, head.bias, pack.targets, reference)

    @torch.no_grad()
    def base_hidden(self, pack: Pack) -> Tensor:
        """Hidden states ``[T, H]`` of the base model before each action token: the reference of the KL guard."""
        with self.peft.disable_adapter():
            return self._hidden(pack.to(self.device))

    def _hidden(self, pack: Pack) -> Tensor:
        return run_trunk(self.base, pack)[pack.context]

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in a fixed order."""
        return {name: parameter for name, parameter in self.peft.named_parameters() if parameter.requires_grad}

    def layers(self) -> dict[str, Any]:
        """The frozen weights of the adapted layers, by their name in the base model."""
        return {name: weight for name, weight, *_ in self.adapted_weights()}

    def adapted_weights(self) -> Iterator[tuple[str, Any, Any, Any, float]]:
        """Name in the base model, frozen weight W, and A, B and scale s of the adapter that adds ``s · B A``.

        W ``[out, in]``, A ``[rank, in]`` and B ``[out, rank]`` are the parameters in use.
        """
        for name, module in self.base.named_modules():
            if isinstance(module, LoraLinear):
                a, b = module.lora_A[ADAPTER].weight, module.lora_B[ADAPTER].weight
                yield f"{name}.weight", module.get_base_layer().weight, a, b, module.scaling[ADAPTER]

    def save_adapter(self, folder: Path) -> None:
        """In PEFT's format, which vLLM and transformers load."""
        self.peft.save_pretrained(str(folder), save_embedding_layers=False)
