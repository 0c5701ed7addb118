"""A version's folder, verified before any of it is loaded. Each refusal says what is wrong."""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open

from online_rl.schemas import ADAPTER, MANIFEST, MERGED, PROBES, Manifest, Probe

_PROBES = TypeAdapter(tuple[Probe, ...])
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class ArtifactRefused(ValueError):
    """The artifact must not be loaded. The message says why."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """What an artifact has to fit: the base model's hash and its tensors' shapes."""

    sha256: str
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    """Tensor name → (dtype as safetensors names it, shape)."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified version, ready to be loaded."""

    version: int
    parent: int | None
    weights: Path | None
    """Folder of the complete model, where the artifact has one."""
    adapter: Path | None
    """Folder of the PEFT adapter, where the artifact has one."""
    probes: tuple[Probe, ...]


def hash_file(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor name → (dtype, shape), from a safetensors header alone. Raises ArtifactRefused."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > path.stat().st_size - 8:
                raise ArtifactRefused(f"{path.name} is cut off inside its header")
            header: dict[str, Any] = json.loads(file.read(size))
        header.pop("__metadata__", None)
        return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ArtifactRefused):
            raise
        raise ArtifactRefused(f"{path.name} is not a safetensors file: {error}") from error


def describe_base(folder: Path) -> BaseModel:
    """The base model in `folder`, whose weights are one ``model.safetensors``. Raises ArtifactRefused."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ArtifactRefused(f"the base model {folder} has no model.safetensors; serving.model must name one that has")
    return BaseModel(hash_file(path), read_tensors(path))


def base_artifact(folder: Path) -> Artifact:
    """Version 0: the base model itself, which has no manifest and no probes."""
    return Artifact(version=0, parent=None, weights=folder, adapter=None, probes=())


def verify_artifact(folder: Path, version: int, base: BaseModel, *, needs: str) -> Artifact:
    """Check everything about `folder` that can be checked without loading it into the engine.

    `needs` is ``merged`` or ``adapter``: what this replica will load. Raises ArtifactRefused.
    """
    manifest = _read_manifest(folder, version, base)
    _check_files(folder, manifest)
    merged, adapter = folder / MERGED, folder / ADAPTER
    if needs == MERGED:
        if not merged.is_dir():
            raise ArtifactRefused(f"version {version} has no {MERGED}/ folder, which swap.mode merged and full need")
        _check_merged(merged / "model.safetensors", base)
    else:
        if not adapter.is_dir():
            raise ArtifactRefused(f"version {version} has no {ADAPTER}/ folder, which swap.mode lora needs")
        _check_finite(adapter / "adapter_model.safetensors")
    return Artifact(
        version=version,
        parent=manifest.parent,
        weights=merged if merged.is_dir() else None,
        adapter=adapter if adapter.is_dir() else None,
        probes=_read_probes(folder, version),
    )


def _read_manifest(folder: Path, version: int, base: BaseModel) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactRefused(f"{folder} has no {MANIFEST}: the artifact is unfinished or the path is wrong")
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ArtifactRefused(f"{path} is not a valid manifest: {error.errors()[0]['msg']}") from error
    if manifest.version != version:
        raise ArtifactRefused(f"{folder} holds version {manifest.version}, not {version}")
    if manifest.base_sha256 != base.sha256:
        raise ArtifactRefused(f"version {version} was trained from another base model than the one served")
    return manifest


def _check_files(folder: Path, manifest: Manifest) -> None:
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    if unlisted := sorted(present - manifest.files.keys()):
        raise ArtifactRefused(f"the manifest does not list {unlisted[0]}")
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ArtifactRefused(f"the manifest names {name}, which lies outside the artifact")
        if path.suffix in _PICKLES:
            raise ArtifactRefused(f"{name} can hold code; only safetensors are loaded")
        if name not in present:
            raise ArtifactRefused(f"{name} is missing")
        if hash_file(path) != expected:
            raise ArtifactRefused(f"{name} does not have the hash that the manifest gives: it was altered or damaged")


def _check_merged(path: Path, base: BaseModel) -> None:
    if not path.is_file():
        raise ArtifactRefused(f"{MERGED}/ has no {path.name}")
    tensors = read_tensors(path)
    if missing := sorted(base.tensors.keys() - tensors.keys()):
        raise ArtifactRefused(f"{path.name} lacks the tensor {missing[0]} of the base model")
    if "lm_head.weight" not in tensors:
        # A reload in place leaves a tied output layer as it was, silently.
        raise ArtifactRefused(f"{path.name} has no explicit lm_head.weight")
    for name, expected in base.tensors.items():
        if tensors[name] != expected:
            raise ArtifactRefused(f"tensor {name} is {tensors[name]}, the base model has {expected}")
    _check_finite(path)


def _check_finite(path: Path) -> None:
    if not path.is_file():
        raise ArtifactRefused(f"{path.parent.name}/ has no {path.name}")
    read_tensors(path)
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            if not bool(file.get_tensor(name).isfinite().all()):
                raise ArtifactRefused(f"tensor {name} of {path.name} holds NaN or infinity")


def _read_probes(folder: Path, version: int) -> tuple[Probe, ...]:
    path = folder / PROBES
    if not path.is_file():
        raise ArtifactRefused(f"version {version} has no {PROBES}: its delivery could not be proved")
    try:
        probes = _PROBES.validate_json(path.read_bytes())
    except ValidationError as error:
        raise ArtifactRefused(f"{PROBES} of version {version} is not valid: {error.errors()[0]['msg']}") from error
    if not any(probe.positions for probe in probes):
        raise ArtifactRefused(f"{PROBES} of version {version} probes nothing: its delivery could not be proved")
    for probe in probes:
        if not len(probe.positions) == len(probe.logprobs) == len(probe.parent_logprobs):
            raise ArtifactRefused(f"{PROBES} of version {version} has lists of different lengths")
        if not all(0 < position < len(probe.token_ids) for position in probe.positions):
            raise ArtifactRefused(f"{PROBES} of version {version} probes a position that has no context")
    return probes
