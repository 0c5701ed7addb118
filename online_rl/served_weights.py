"""The policy's weights exactly as they are served: base + adapter, rounded to the precision of the base model's file.

Always built from the pristine base, never from merged weights, so that rounding does not add up over versions.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from online_rl.base_model import run_trunk
from online_rl.packing import TokenSequence, pack_sequences
from online_rl.policy_model import PolicyModel
from online_rl.token_scores import score_tokens


def merge_weights(policy: PolicyModel, served_dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Name and merged weight of each adapted layer: ``round(W + scale · B A)``, summed in float32."""
    base = {name.replace(".base_layer.", "."): tensor for name, tensor in policy.base.named_parameters()}
    for name, delta in policy.deltas():
        yield name, (base[name].float() + delta).to(served_dtype)


def read_served_dtype(folder: Path) -> torch.dtype:
    """The precision of the weights in a model folder, which is what the engine serves them in."""
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        return tensors.get_tensor(next(iter(tensors.keys()))).dtype


class ServedModel:
    """A second instance of the model that holds merged weights, to score probes under what replicas serve.

    Its products run in the learner's own precision: the weights are the served ones, the arithmetic is the exact
    side of the comparison.
    """

    def __init__(self, model: Any, served_dtype: torch.dtype) -> None:
        self.model = model
        self.served_dtype = served_dtype
        self._device = next(model.parameters()).device
        self._dtype = next(model.parameters()).dtype
        self._parameters = dict(model.named_parameters())

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put merged weights in place. Layers that are not named stay: they are the base's."""
        for name, weight in weights.items():
            self._parameters[name].copy_(weight)

    @torch.no_grad()
    def score_sequences(self, sequences: Sequence[TokenSequence], max_tokens: int = 1024) -> list[Tensor]:
        """For each sequence, float32 ``[N]``: the log-probabilities of its N action tokens, on the CPU."""
        found: dict[int, Tensor] = {}
        head = self.model.get_output_embeddings()
        for pack in pack_sequences(sequences, max_tokens):
            pack = pack.to(self._device)
            hidden = run_trunk(self.model, pack)[pack.context].to(self._dtype)
            logprobs = score_tokens(hidden, head.weight, head.bias, pack.targets)[0].cpu()
            found |= dict(zip(pack.members, logprobs.split(pack.lengths.tolist()), strict=True))
        return [found[index] for index in range(len(sequences))]
