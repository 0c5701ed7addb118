"""Publishing: a version's artifact folder, complete and hashed, with the probes that prove its delivery.

``versions/v000012/`` holds ``adapter/`` (PEFT; none where all weights train), ``merged/`` (a complete model folder,
where `swap.mode` is merged or full),
``probes.json`` and, written last, ``manifest.json``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import RootModel
from safetensors import safe_open
from torch import Tensor

from feedback.schemas import Trajectory
from online_rl.base_model import UnusableModel
from online_rl.durable_files import disk_errors, finish_folder, hash_file, hash_folder, start_folder
from online_rl.merged_weights import WEIGHTS, served_dtype, write_merged
from online_rl.packing import TokenSequence
from online_rl.policy_model import Policy
from online_rl.probes import choose_probes
from online_rl.schemas import BASE_VERSION, MANIFEST, MERGED, PROBES, Manifest, Probe
from online_rl.served_weights import score_served

CANDIDATES = 6
"""Trajectories that probes are chosen among; each is scored under both versions, most of what publishing costs."""


class Publisher:
    """Writes artifacts of one base model."""

    def __init__(self, versions: Path, base_folder: Path, policy: Policy, *, write_merged: bool) -> None:
        self._versions = versions
        self._base_folder = base_folder
        self._policy = policy
        self._write_merged = write_merged
        self.base_sha256 = hash_file(base_folder / WEIGHTS)
        self._dtype = served_dtype(base_folder)
        with safe_open(base_folder / WEIGHTS, framework="pt") as tensors:
            names = set(tensors.keys())
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
                write_merged(draft / MERGED, self._base_folder, merged)
        probes = self._probe(parent, merged, recent)
        (draft / PROBES).write_text(RootModel[list[Probe]](probes).model_dump_json())
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
        (draft / MANIFEST).write_text(manifest.model_dump_json(indent=2))
        finish_folder(draft, target)
        return target

    def folder(self, version: int) -> Path:
        return self._versions / f"v{version:06d}"

    def _probe(self, parent: int, merged: Mapping[str, Tensor], recent: Sequence[Trajectory]) -> list[Probe]:
        chosen = recent[-CANDIDATES:]
        sequences = [TokenSequence(trajectory.token_ids, trajectory.action_mask) for trajectory in chosen]
        parent_weights: Mapping[str, Tensor] = {}
        if parent != BASE_VERSION:
            parent_weights = self._policy.read_version(self.folder(parent), self._dtype)
        parent_logprobs = score_served(self._policy, parent_weights, sequences)
        return choose_probes(sequences, score_served(self._policy, merged, sequences), parent_logprobs)


def choose_write_merged(mode: str, device: torch.device | None = None) -> bool:
    """Whether `swap.mode` needs merged weights: `auto` is ``lora`` where CUDA is, ``merged`` elsewhere."""
    if mode == "auto":
        return not (torch.cuda.is_available() if device is None else device.type == "cuda")
    return mode != "lora"
