"""The file that hands pretrained value weights to the learner, which takes it once, at its next start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from online_rl.durable_files import disk_errors, hash_file, sync

NAME = "pretrained_value.safetensors"


class PretrainedValueError(RuntimeError):
    """The file cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class PretrainedValue:
    """Value weights by parameter name, float32."""

    tensors: Mapping[str, Tensor]
    base_sha256: str
    """Of the base model they were trained on."""
    sha256: str
    """Of the file: which weights a learner has taken already."""


def save_pretrained(data_dir: Path, tensors: Mapping[str, Tensor], base_sha256: str) -> Path:
    """Write the file; one that is there is replaced at once. Raises OSError."""
    target = data_dir / NAME
    draft = data_dir / f".{NAME}.draft"
    found = {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with disk_errors():
            save_file(found, draft, metadata={"base_sha256": base_sha256})
        sync(draft)
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
    sync(data_dir)
    return target


def load_pretrained(data_dir: Path) -> PretrainedValue | None:
    """None where there is none. Raises PretrainedValueError."""
    path = data_dir / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            base = (file.metadata() or {})["base_sha256"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError) as error:
        raise PretrainedValueError(f"{path} cannot be read; remove it or run pretrain-value again: {error}") from error
    return PretrainedValue(tensors, base, hash_file(path))
