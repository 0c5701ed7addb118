"""The policy's weights exactly as they are served: base + adapter, rounded to the precision of the base model's file.

Always built from the pristine base, never from merged weights, so that rounding does not add up over versions.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from online_rl.packing import TokenSequence, pack_sequences
from online_rl.policy_model import PolicyModel


@torch.no_grad()
def merge_weights(policy: PolicyModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weight of each adapted layer by its name in the base model: ``round(W + s · B A)``, summed in float32."""
    return {name: round_sum(weight, a, b, scale, dtype) for name, weight, a, b, scale in policy.adapted_weights()}


@torch.no_grad()
def merge_adapter(policy: PolicyModel, adapter: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same for an adapter folder that was published before. Raises KeyError where it lacks a layer."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    merged: dict[str, Tensor] = {}
    for name, weight, _, _, _ in policy.adapted_weights():
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        a, b = (tensors[f"{prefix}.lora_{side}.weight"].to(weight.device) for side in "AB")
        merged[name] = round_sum(weight, a, b, scale, dtype)
    return merged


def round_sum(weight: Tensor, a: Tensor, b: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    return torch.addmm(weight.float(), b, a, alpha=scale).to(dtype)


@contextmanager
def serving(policy: PolicyModel, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block the policy computes with `weights` in place of base and adapter, in its own precision."""
    layers = policy.layers()
    pristine = {name: layers[name].data for name in weights}
    try:
        for name, weight in weights.items():
            layers[name].data = weight.to(pristine[name])
        with policy.peft.disable_adapter():
            yield
    finally:
        for name, weight in pristine.items():
            layers[name].data = weight


@torch.no_grad()
def score_served(
    policy: PolicyModel, weights: Mapping[str, Tensor], sequences: Sequence[TokenSequence], max_tokens: int = 512
) -> list[Tensor]:
    """For each sequence, float32 ``[N]``: log-probabilities of its N action tokens under served `weights` (none: the
    base model's), on the CPU. The weights are those served; the arithmetic is the learner's, the exact side of the
    comparison."""
    found: dict[int, Tensor] = {}
    with serving(policy, weights):
        for pack in pack_sequences(sequences, max_tokens):
            logprobs = policy.score(pack).logprobs.cpu()
            found |= dict(zip(pack.members, logprobs.split(pack.lengths.tolist()), strict=True))
    return [found[index] for index in range(len(sequences))]
