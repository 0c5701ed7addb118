"""The policy in training: what every kind of it does, and the one with a LoRA adapter on a frozen base model.

`full_policy.FullPolicy` is the other kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from online_rl.base_model import UnusableModel, run_trunk
from online_rl.lora_linear import use_lean_products
from online_rl.merged_weights import merge_adapter, round_sum
from online_rl.packing import Pack
from online_rl.token_scores import Scores, score_tokens

ADAPTER = "default"


def add_lora(
    model: Any, *, rank: int, alpha: float, target: str | Sequence[str], seed: int, parameters: Sequence[str] = ()
) -> PeftModel:
    """Adapters in float32 on the linear layers that `target` names, by the end of their name, and on fused
    `parameters` ``[experts, out, in]``; everything else is frozen.

    Embeddings and the output layer never get one. Raises UnusableModel where one is named, or where a name fits none.
    """
    if not isinstance(target, str):
        check_targets(model, target)
    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]: PEFT takes floats
        target_modules=target if isinstance(target, str) else list(target),
        target_parameters=list(parameters) or None,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    assert isinstance(adapted, PeftModel)
    adapted.eval()
    use_lean_products(adapted)
    return adapted


def check_targets(model: Any, target: Sequence[str]) -> None:
    """Raise UnusableModel unless every name of `target` ends that of a layer, none of them embeddings or output."""
    output, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    tied = output is not None and output.weight is embeddings.weight
    for wanted in target:
        found = [module for name, module in model.named_modules() if f".{name}".endswith(f".{wanted}")]
        if not found:
            raise UnusableModel(f"learner.lora_targets: no layer of the model is named {wanted}")
        if any(module is output or module is embeddings for module in found):
            reason = (
                "the embeddings and the output layer are one tied tensor, and an adapter on one would change both"
                if tied
                else "token scores take the output layer and the embeddings as frozen"
            )
            raise UnusableModel(f"learner.lora_targets names {wanted}, which cannot have an adapter: {reason}")


class Policy(ABC):
    """Scores action tokens under the weights in training and under the base model, and says what to serve."""

    kind: ClassVar[Literal["lora", "full"]]
    rank: int | None
    """Of the adapter, where there is one."""

    def __init__(self, base: Any) -> None:
        self.base = base
        self.device: torch.device = next(base.parameters()).device
        self.dtype: torch.dtype = next(base.parameters()).dtype
        self.vocabulary, self.width = base.get_input_embeddings().weight.shape
        self._base_hidden = WeakTensorKeyDictionary()

    @abstractmethod
    def score(self, pack: Pack, reference: Tensor | None = None) -> Scores:
        """Under the weights in training, with gradient where it is enabled.

        `reference` ``[T, H]``, of `base_hidden`, adds the divergence from the base model.
        """

    @torch.no_grad()
    def base_hidden(self, pack: Pack) -> Tensor:
        """Hidden states ``[T, H]`` of the base model before each action token: the reference of the KL guard.

        Computed once for a pack, and kept as long as the pack is.
        """
        if pack.token_ids not in self._base_hidden:
            self._base_hidden[pack.token_ids] = self._run_base(pack.to(self.device))
        return self._base_hidden[pack.token_ids]

    @abstractmethod
    def _run_base(self, pack: Pack) -> Tensor: ...

    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in a fixed order."""

    @abstractmethod
    def base_parameters(self) -> dict[str, Tensor]:
        """Where in `parameters` the policy is the base model; a parameter that is left out may be anywhere."""

    @abstractmethod
    def layers(self) -> dict[str, Tensor]:
        """The weights that a version replaces, by their name in the base model; the tensors in use."""

    @abstractmethod
    def base_weights(self) -> Mapping[str, Tensor]:
        """What `layers` are in the base model, where they are not that now."""

    @abstractmethod
    def plain(self) -> AbstractContextManager[Any]:
        """Within the block nothing is added to `layers`."""

    @abstractmethod
    def served_weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The weights in training as they are served: by their name in the base model, rounded to `dtype` once."""

    @abstractmethod
    def read_version(self, folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
        """The same of a version that was published into `folder` before. Raises OSError, KeyError."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what a version's `folder` holds of this policy beside the merged weights."""


class PolicyModel(Policy):
    """A frozen base model and a LoRA adapter on its linear layers. The base is the same network without the adapter."""

    kind = "lora"

    def __init__(self, base: Any, *, rank: int, alpha: float, seed: int, targets: Sequence[str] = ()) -> None:
        super().__init__(base)
        self.rank = rank
        self.peft = add_lora(base, rank=rank, alpha=alpha, target=targets or "all-linear", seed=seed)

    def score(self, pack: Pack, reference: Tensor | None = None) -> Scores:
        pack = pack.to(self.device)
        head = self.base.get_output_embeddings()
        return score_tokens(self._hidden(pack), head.weight, head.bias, pack.targets, reference)

    def _run_base(self, pack: Pack) -> Tensor:
        with self.peft.disable_adapter():
            return self._hidden(pack)

    def _hidden(self, pack: Pack) -> Tensor:
        return run_trunk(self.base, pack)[pack.context]

    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.peft.named_parameters() if parameter.requires_grad}

    def base_parameters(self) -> dict[str, Tensor]:
        """B = 0 makes ``s · B A`` nothing, whatever A is; and the change is linear in B."""
        return {name: torch.zeros_like(p) for name, p in self.parameters().items() if ".lora_B." in name}

    def layers(self) -> dict[str, Tensor]:
        return {name: weight for name, weight, *_ in self.adapted_weights()}

    def base_weights(self) -> Mapping[str, Tensor]:
        return {}

    def plain(self) -> AbstractContextManager[Any]:
        return self.peft.disable_adapter()

    def adapted_weights(self) -> Iterator[tuple[str, Any, Any, Any, float]]:
        """Name in the base model, frozen weight W, and A, B and scale s of the adapter that adds ``s · B A``.

        W ``[out, in]``, A ``[rank, in]`` and B ``[out, rank]`` are the parameters in use.
        """
        for name, module in self.base.named_modules():
            if isinstance(module, LoraLinear):
                a, b = module.lora_A[ADAPTER].weight, module.lora_B[ADAPTER].weight
                yield f"{name}.weight", module.get_base_layer().weight, a, b, module.scaling[ADAPTER]

    @torch.no_grad()
    def served_weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """``round(W + s · B A)`` of each adapted layer, summed in float32, always from the pristine W."""
        return {name: round_sum(weight, a, b, scale, dtype) for name, weight, a, b, scale in self.adapted_weights()}

    @torch.no_grad()
    def read_version(self, folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
        pristine = {name: weight for name, weight, *_ in self.adapted_weights()}
        return merge_adapter(pristine, folder / "adapter", dtype)

    def save(self, folder: Path) -> None:
        """In PEFT's format, which vLLM and transformers load."""
        self.peft.save_pretrained(str(folder / "adapter"), save_embedding_layers=False)
        # PEFT writes a model card that names files of this machine.
        (folder / "adapter" / "README.md").unlink(missing_ok=True)
