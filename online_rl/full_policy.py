"""The policy with all its weights in training, beside a frozen copy of the base model for the KL guard."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from online_rl.base_model import run_trunk
from online_rl.packing import Pack
from online_rl.policy_model import Policy
from online_rl.token_scores import Scores
from online_rl.trained_head import score_tokens_trained
from online_rl.trained_weights import train_copies


class FullPolicy(Policy):
    """Its weights are in the precision of the matrix products; the optimiser keeps their float32 masters."""

    kind = "full"
    rank = None

    def __init__(self, base: Any, reference: Any) -> None:
        """`base` is trained, on tensors of its own; `reference`, the same model, stays frozen and may be shared."""
        super().__init__(base)
        self._reference = reference
        self._trained = train_copies(base, {name for name, _ in base.named_parameters()})

    def score(self, pack: Pack, reference: Tensor | None = None) -> Scores:
        pack = pack.to(self.device)
        head, frozen = self.base.get_output_embeddings(), self._reference.get_output_embeddings()
        hidden = run_trunk(self.base, pack)[pack.context]
        others = None if reference is None else (reference, frozen.weight, frozen.bias)
        return score_tokens_trained(hidden, head.weight, head.bias, pack.targets, others)

    def _run_base(self, pack: Pack) -> Tensor:
        return run_trunk(self._reference, pack)[pack.context]

    def parameters(self) -> dict[str, nn.Parameter]:
        return self._trained

    def base_parameters(self) -> dict[str, Tensor]:
        return dict(self.base_weights())

    def layers(self) -> dict[str, Tensor]:
        return dict(self._trained)

    def base_weights(self) -> Mapping[str, Tensor]:
        frozen = dict(self._reference.named_parameters())
        return {name: frozen[name] for name in self._trained}

    def plain(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def served_weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """A snapshot: training goes on in other tensors."""
        return {name: parameter.detach().to(dtype, copy=True) for name, parameter in self._trained.items()}

    def read_version(self, folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
        with safe_open(folder / "merged" / "model.safetensors", framework="pt", device=str(self.device)) as tensors:
            return {name: tensors.get_tensor(name).to(dtype) for name in self._trained}

    def save(self, folder: Path) -> None:
        """Nothing: the merged weights are the policy."""
