"""The policy and, where the objective needs one, the value model, on one set of frozen base weights."""

from pathlib import Path
from typing import Any, Literal

import torch

from online_rl.base_model import load_base, share_frozen
from online_rl.full_policy import FullPolicy
from online_rl.objectives import make_objective
from online_rl.policy_model import Policy, PolicyModel
from online_rl.settings import LearnerSettings
from online_rl.shared_trunk import SharedTrunkValue
from online_rl.value_model import ValueModel, Values


def build_models(
    folder: Path, device: torch.device, dtype: torch.dtype, settings: LearnerSettings
) -> tuple[Policy, Values | None]:
    """Both models, seeded by `learner.seed`; no value model where `learner.objective` needs none.

    Whatever stays frozen is in memory once. Raises UnusableModel.
    """
    frozen = load_base(folder, device, dtype)

    def load_another() -> Any:
        model = load_base(folder, device, dtype)
        share_frozen(frozen, model)
        return model

    # Before adapters are put on `frozen`, which would rename its weights.
    needs_value = make_objective(settings).needs.value_model
    kind = choose_value_model(settings, device)
    value_base = load_another() if needs_value and kind != "shared_trunk" else None
    policy: Policy
    if settings.policy_weights == "full":
        policy = FullPolicy(load_another(), frozen)
    else:
        rank, alpha = settings.lora_rank, settings.lora_alpha
        policy = PolicyModel(frozen, rank=rank, alpha=alpha, seed=settings.seed, targets=settings.lora_targets)
    if not needs_value:
        return policy, None
    if kind == "shared_trunk":
        return policy, SharedTrunkValue(policy, seed=settings.seed + 1)
    value = ValueModel(
        value_base,
        rank=settings.lora_rank,
        alpha=settings.lora_alpha,
        seed=settings.seed + 1,
        weights=kind,
        attention=settings.value_attention,
    )
    return policy, value


def choose_value_model(settings: LearnerSettings, device: torch.device) -> Literal["lora", "full", "shared_trunk"]:
    """What `auto` means on `device`: see docs/adr/0006-on-cpu-values-share-the-trunk.md."""
    if settings.value_model == "auto":
        return "shared_trunk" if device.type == "cpu" else "lora"
    return settings.value_model
