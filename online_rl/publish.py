"""Publishing: a version's artifact folder, complete and hashed, with the probes that prove its delivery.

``versions/v000012/`` holds ``adapter/`` (PEFT; none where all weights train), ``merged/`` (a complete model folder,
where `swap.mode` is merged or full),
``probes.json`` and, written last, ``manifest.json``.
"""

import json
import logging
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import RootModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from feedback.schemas import Trajectory
from online_rl.base_model import UnusableModel
from online_rl.durable_files import disk_errors, finish_folder, hash_file, hash_folder, start_folder
from online_rl.packing import TokenSequence
from online_rl.policy_model import Policy
from online_rl.probes import choose_probes
from online_rl.schemas import BASE_VERSION, Manifest, Probe
from online_rl.served_weights import score_served

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"
EMBEDDINGS = "model.embed_tokens.weight"
CANDIDATES = 8
"""Trajectories that probes are chosen among."""
_COPIED = ("*.json", "*.jinja", "*.model", "*.txt")


class Publisher:
    """Writes artifacts of one base model."""

    def __init__(self, versions: Path, base_folder: Path, policy: Policy, *, write_merged: bool) -> None:
        self._versions = versions
        self._base_folder = base_folder
        self._policy = policy
        self._write_merged = write_merged
        self.base_sha256 = hash_file(base_folder / WEIGHTS)
        with safe_open(base_folder / WEIGHTS, framework="pt") as tensors:
            names = set(tensors.keys())
            self._dtype = tensors.get_tensor(next(iter(tensors.keys()))).dtype
        if unknown := sorted(policy.layers().keys() - names):
            raise UnusableModel(
                f"{WEIGHTS} of the base model has no tensor {unknown[0]}, as the model in memory has (fused experts?); "
                "versions of it could not be published: set learner.policy_weights to lora"
            )

    def publish(
        self, version: int, parent: int, *, update: int, recent: Sequence[Trajectory], created_at: float
    ) -> Path:
        """Write the artifact of the weights in training and return its folder.

        Probes are chosen among the `recent` trajectories. Raises OSError; nothing that looks finished is left then.
        """
        target = self.folder(version)
        draft = start_folder(target)
        merged = self._policy.served_weights(self._dtype)
        with disk_errors():
            self._policy.save(draft)
            if self._write_merged:
                self._write_model(draft / "merged", merged)
        probes = self._probe(parent, merged, recent)
        (draft / "probes.json").write_text(RootModel[list[Probe]](probes).model_dump_json())
        manifest = Manifest(
            version=version,
            parent=parent,
            kind=self._policy.kind,
            base_sha256=self.base_sha256,
            files=hash_folder(draft),
            lora_rank=self._policy.rank,
            update=update,
            created_at=created_at,
        )
        (draft / "manifest.json").write_text(manifest.model_dump_json(indent=2))
        finish_folder(draft, target)
        return target

    def folder(self, version: int) -> Path:
        return self._versions / f"v{version:06d}"

    def prune(self, *, keep: int, in_use: Collection[int]) -> None:
        """Remove all but the newest `keep` versions' merged weights, never those of a version `in_use`.

        Adapters, probes and manifests stay, so any version with an adapter can be merged again.
        """
        found = (path.parent for path in self._versions.glob("v[0-9]*/merged"))
        holding = sorted(found, key=lambda folder: int(folder.name[1:]))
        for folder in holding[:-keep]:
            if int(folder.name[1:]) not in in_use:
                shutil.rmtree(folder / "merged")

    def _write_model(self, folder: Path, merged: Mapping[str, Tensor]) -> None:
        folder.mkdir()
        tensors = load_file(self._base_folder / WEIGHTS) | {name: tensor.cpu() for name, tensor in merged.items()}
        # An engine that reloads in place keeps the old head of a tied model, silently; so the head is always named.
        if HEAD not in tensors:
            tensors[HEAD] = tensors[EMBEDDINGS].clone()
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        for pattern in _COPIED:
            for source in self._base_folder.glob(pattern):
                link_or_copy(source, folder / source.name)
        config = json.loads((self._base_folder / "config.json").read_text()) | {"tie_word_embeddings": False}
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))

    def _probe(self, parent: int, merged: Mapping[str, Tensor], recent: Sequence[Trajectory]) -> list[Probe]:
        chosen = recent[-CANDIDATES:]
        sequences = [TokenSequence(trajectory.token_ids, trajectory.action_mask) for trajectory in chosen]
        parent_weights: Mapping[str, Tensor] = {}
        if parent != BASE_VERSION:
            parent_weights = self._policy.read_version(self.folder(parent), self._dtype)
        parent_logprobs = score_served(self._policy, parent_weights, sequences)
        return choose_probes(sequences, score_served(self._policy, merged, sequences), parent_logprobs)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows it, else a copy."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def choose_write_merged(mode: str, device: torch.device | None = None) -> bool:
    """Whether `swap.mode` needs merged weights: `auto` is ``lora`` where CUDA is, ``merged`` elsewhere."""
    if mode == "auto":
        return not (torch.cuda.is_available() if device is None else device.type == "cuda")
    return mode != "lora"
