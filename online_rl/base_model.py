"""The frozen base model that the policy and the value model are adapters of."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from online_rl.packing import Pack
from online_rl.settings import LearnerSettings


class UnusableModel(ValueError):
    """The base model cannot be trained here; the message says why and what to do."""


def find_model(path: str) -> Path:
    """The folder of the base model; a Hugging Face id is looked up in the local cache and fetched if need be.

    Raises UnusableModel.
    """
    folder = Path(path)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        try:
            folder = Path(snapshot_download(path))
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise UnusableModel(
                f"serving.model {path!r} is neither a folder (run `make setup` for the default one) nor a model id "
                f"that can be fetched: {error}"
            ) from error
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise UnusableModel(f"serving.model: {folder} has no {name}; give a folder with a complete model")
    return folder


def choose_device(settings: LearnerSettings) -> torch.device:
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def choose_dtype(settings: LearnerSettings, device: torch.device) -> torch.dtype:
    """`auto` takes bfloat16 only where it is multiplied in hardware: emulated, it is 5 times slower than float32."""
    return best_dtype(device) if settings.dtype == "auto" else getattr(torch, settings.dtype)


def best_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it is multiplied in hardware, else float32."""
    if device.type == "cuda":
        return torch.bfloat16
    fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def choose_threads(settings: LearnerSettings) -> int:
    return settings.threads or max(1, len(os.sched_getaffinity(0)) // 2)


def load_base(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """A frozen Hugging Face causal language model. Raises UnusableModel."""
    config = AutoConfig.from_pretrained(folder)
    for field in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, field, None) not in (None, 1.0):
            raise UnusableModel(f"{folder}: config.{field} changes the logits in a way that is not supported")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    model.to(device)  # pyright: ignore[reportArgumentType]: the stubs of transformers wrap `to` wrongly
    model.requires_grad_(False)
    # Dropout would make the recomputed log-probabilities differ from the served ones.
    return model.eval()


def share_frozen(source: nn.Module, target: nn.Module) -> None:
    """Let `target` use the very tensors of `source`, so that two adapted models hold the base weights once."""
    weights = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        parameter.data = weights[name].data


def run_trunk(model: Any, pack: Pack) -> Tensor:
    """Hidden states ``[M, H]`` after the final norm, of all tokens of the pack. Logits are never formed here."""
    trunk = getattr(model, model.base_model_prefix)
    # In eval mode with use_cache off, as in training but without dropout.
    output = trunk(
        input_ids=pack.token_ids,
        position_ids=pack.position_ids,
        attention_mask=pack.attention_mask,
        use_cache=False,
    )
    return output.last_hidden_state[0]
