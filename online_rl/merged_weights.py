"""A version's merged weights: the base model's file with the trained weights in place of its own.

They are always built from the pristine base and rounded as they will be served. So the same base and adapter give the
same file, and merged weights that were removed can be made again, exactly.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from online_rl.durable_files import disk_errors, hash_folder, sync, sync_folder
from online_rl.schemas import ADAPTER, MERGED

WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"
EMBEDDINGS = "model.embed_tokens.weight"
_COPIED = ("*.json", "*.jinja", "*.model", "*.txt")
_PREFIX, _SUFFIX = "base_model.model.", ".lora_A.weight"
"""Around a layer's name in PEFT's files."""


class OtherWeights(RuntimeError):
    """Merging again gave something else than what was published. The message names the file."""


def served_dtype(base_folder: Path) -> torch.dtype:
    """The precision of the base model's file, in which its versions are served."""
    with safe_open(base_folder / WEIGHTS, framework="pt") as tensors:
        return tensors.get_tensor(next(iter(tensors.keys()))).dtype


def round_sum(weight: Tensor, a: Tensor, b: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """``round(W + s · B A)``, summed in float32. W ``[out, in]``, A ``[rank, in]``, B ``[out, rank]``."""
    return torch.addmm(weight.float(), b, a, alpha=scale).to(dtype)


@torch.no_grad()
def merge_adapter(weights: Mapping[str, Tensor], adapter: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """The merged weight of each layer that the PEFT adapter in the folder `adapter` changes.

    `weights` holds the pristine ones by their name in the base model. Raises KeyError where it lacks one.
    """
    tensors = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    merged: dict[str, Tensor] = {}
    for key in tensors:
        if not key.endswith(_SUFFIX):
            continue
        layer = key.removesuffix(_SUFFIX)
        name = f"{layer.removeprefix(_PREFIX)}.weight"
        weight = weights[name]
        a, b = (tensors[f"{layer}.lora_{side}.weight"].to(weight.device) for side in "AB")
        merged[name] = round_sum(weight, a, b, scale, dtype)
    return merged


def write_merged(folder: Path, base_folder: Path, merged: Mapping[str, Tensor]) -> None:
    """Write a complete model to the new folder `folder`: the base model, and `merged` in place of what it names."""
    folder.mkdir()
    tensors = load_file(base_folder / WEIGHTS) | {name: tensor.cpu() for name, tensor in merged.items()}
    # An engine that reloads in place keeps the old head of a tied model, silently; so the head is always named.
    if HEAD not in tensors:
        tensors[HEAD] = tensors[EMBEDDINGS].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    for pattern in _COPIED:
        for source in base_folder.glob(pattern):
            link_or_copy(source, folder / source.name)
    config = json.loads((base_folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))


def merge_again(artifact: Path, base_folder: Path, files: Mapping[str, str]) -> None:
    """Make the merged weights of the version in `artifact` again, from its adapter and the base model.

    `files` are those of its manifest: what comes out appears in the artifact only where it has their hashes.
    Raises OtherWeights, KeyError and OSError.
    """
    target = artifact / MERGED
    with tempfile.TemporaryDirectory(dir=artifact.parent, prefix=f".{artifact.name}.") as scratch, disk_errors():
        draft = Path(scratch) / MERGED
        base = load_file(base_folder / WEIGHTS)
        write_merged(draft, base_folder, merge_adapter(base, artifact / ADAPTER, served_dtype(base_folder)))
        made = {f"{MERGED}/{name}": digest for name, digest in hash_folder(draft).items()}
        published = {name: digest for name, digest in files.items() if name.startswith(f"{MERGED}/")}
        for name in sorted(made.keys() | published.keys()):
            if made.get(name) != published.get(name):
                raise OtherWeights(f"{name} comes out differently from how it was published")
        sync_folder(draft)
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    sync(artifact)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows it, else a copy."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
