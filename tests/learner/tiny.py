"""A random Llama of two layers in a folder as the service expects it, and trajectories for it."""

import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from feedback.schemas import Trajectory
from online_rl.base_model import load_base, share_frozen
from online_rl.policy_model import PolicyModel
from online_rl.settings import LearnerSettings
from online_rl.trainer import Trainer
from online_rl.value_model import ValueModel
from serving.schemas import VersionSpan

VOCABULARY = 60
SETTINGS = LearnerSettings(
    batch_size=4,
    min_batch=2,
    value_warmup=2,
    learning_rate=1e-2,
    value_learning_rate=1e-2,
    schedule="constant",
    kl_free=1e-6,  # so that each update depends on the divergence of the one before
    value_model="lora",
    lora_rank=2,
    lora_alpha=4.0,
    dtype="float32",
    device="cpu",
    threads=1,
)
CPU = torch.device("cpu")


def make_model_folder(folder: Path, *, tied: bool = False) -> Path:
    """Weights in bfloat16, as models are published."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    if tied:
        tensors = load_file(folder / "model.safetensors")
        assert "lm_head.weight" not in tensors
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_models(folder: Path) -> tuple[PolicyModel, ValueModel]:
    torch.set_num_threads(1)
    policy_base, value_base = (load_base(folder, CPU, torch.float32) for _ in range(2))
    share_frozen(policy_base, value_base)
    policy = PolicyModel(policy_base, rank=2, alpha=4.0, seed=0)
    return policy, ValueModel(value_base, rank=2, alpha=4.0, seed=1)


def make_trainer(folder: Path, settings: LearnerSettings = SETTINGS) -> Trainer:
    return Trainer(*make_models(folder), settings)


def make_trajectory(number: int, **changes: object) -> Trajectory:
    """A prompt that all share, a question and an answer; sometimes an observation between two answers."""
    rng = random.Random(number)
    tokens = [1, 2, 3, 4, 5, *(rng.randrange(6, VOCABULARY) for _ in range(rng.randint(6, 14)))]
    mask = [0] * 7 + [1] * (len(tokens) - 7)
    if number % 3 == 0 and len(tokens) > 13:
        mask[9] = mask[10] = 0
    actions = sum(mask)
    values: dict[str, object] = {
        "trajectory_id": f"t{number}",
        "episode_id": f"e{number}",
        "inference_ids": (f"i{number}",),
        "token_ids": tuple(tokens),
        "action_mask": tuple(mask),
        "behavior_logprobs": tuple(-4.0 - rng.random() for _ in range(actions)),
        "spans": (VersionSpan(start=0, end=actions, version=0),),
        "reward": float(rng.random() < 0.5),
        "generated_at": float(number),
        "rated_at": float(number),
        "released_at": float(number),
    }
    return Trajectory.model_validate(values | changes)


def make_trajectories(count: int, start: int = 0) -> list[Trajectory]:
    return [make_trajectory(number) for number in range(start, start + count)]
