"""The policy and the value model that the settings ask for, on one set of frozen base weights."""

from pathlib import Path
from typing import Any

import torch

from online_rl.base_model import load_base, share_frozen
from online_rl.full_policy import FullPolicy
from online_rl.policy_model import Policy, PolicyModel
from online_rl.settings import LearnerSettings
from online_rl.shared_trunk import SharedTrunkValue
from online_rl.value_model import ValueModel, Values


def build_models(
    folder: Path, device: torch.device, dtype: torch.dtype, settings: LearnerSettings
) -> tuple[Policy, Values]:
    """Both models, seeded by `learner.seed`. Whatever stays frozen is in memory once. Raises UnusableModel."""
    frozen = load_base(folder, device, dtype)

    def load_another() -> Any:
        model = load_base(folder, device, dtype)
        share_frozen(frozen, model)
        return model

    # Before adapters are put on `frozen`, which would rename its weights.
    value_base = None if settings.value_model == "shared_trunk" else load_another()
    policy: Policy
    if settings.policy_weights == "full":
        policy = FullPolicy(load_another(), frozen)
    else:
        rank, alpha = settings.lora_rank, settings.lora_alpha
        policy = PolicyModel(frozen, rank=rank, alpha=alpha, seed=settings.seed, targets=settings.lora_targets)
    if settings.value_model == "shared_trunk":
        return policy, SharedTrunkValue(policy, seed=settings.seed + 1)
    value = ValueModel(
        value_base,
        rank=settings.lora_rank,
        alpha=settings.lora_alpha,
        seed=settings.seed + 1,
        weights=settings.value_model,
        attention=settings.value_attention,
    )
    return policy, value
