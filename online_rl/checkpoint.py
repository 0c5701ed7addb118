"""Checkpoints: everything the learner needs to go on as if it had never stopped.

``checkpoints/u000012/`` holds ``tensors.safetensors`` (weights and optimisers), ``state.json`` and, written last,
``manifest.json`` with their hashes. The folder is built under another name and renamed, so a crash leaves the
checkpoint before it; one that was damaged later is recognised, and the one before it is used.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from online_rl.baselines import BaselineState
from online_rl.divergence import GuardState
from online_rl.drift_events import Recovery, Shift
from online_rl.drift_state import DriftState
from online_rl.durable_files import discard_folder, disk_errors, finish_folder, hash_folder, start_folder
from online_rl.reaction import Reaction

logger = logging.getLogger(__name__)

TENSORS = "tensors.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"
DriftEvent = Annotated[Shift | Recovery | Reaction, Field(discriminator="kind")]
UNREADABLE = (OSError, ValueError, SafetensorError, ValidationError)


class CheckpointError(RuntimeError):
    """No checkpoint can be used although there are some; the message says what is wrong with each."""


class CheckpointNotSaved(RuntimeError):
    """The disk does not take a checkpoint; the message says what to do."""


class LearnerState(BaseModel):
    """What a checkpoint holds beside tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int
    value_updates: int
    entropy_skips: int = 0
    schedule_start: int = 0
    kl_to_base: float = 0.0
    version: int
    """The newest version published; the row of this update in `updates` says the same."""
    published_update: int = 0
    """The update whose weights that version holds."""
    offsets: dict[int, int]
    """Partition → next offset to read: everything before it was trained on or dropped."""
    log_identity: str | None
    """Of the log that `offsets` belong to; another one means that the log was emptied."""
    trained_ids: tuple[str, ...]
    """The trajectories of this very update, so that SQL can be completed after a crash right behind the checkpoint."""
    dropped: dict[str, str] = {}
    """Trajectory id → reason, of what this very update threw away, for the same reason."""
    metrics: dict[str, float]
    """Of this update, for the same reason."""
    trained_at: float
    random_state: str
    """Torch's generator, hexadecimal."""
    base_sha256: str
    """Adapters of another base model would load without an error and mean nothing."""
    objective: str = "sao"
    """That this update was made with."""
    baseline: BaselineState = {}
    """The past rewards that its baseline remembers."""
    pretrained_value: str | None = None
    """SHA-256 of the pretrained value weights that were taken last: a file is taken once."""
    guard: GuardState = GuardState()
    drift: DriftState = DriftState()
    drift_events: tuple[DriftEvent, ...] = ()
    """What this update's trajectories revealed, and what was done about it."""
    shift: Shift | None = None
    """Found, and not reacted to yet."""
    reaction: Reaction | None = None
    """That runs."""


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    files: dict[str, str]


class Checkpoints:
    """The checkpoints of one learner, newest last; the newest `keep` stay, and the last good one."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(self, state: LearnerState, tensors: Mapping[str, Tensor]) -> Path:
        """Write a checkpoint and remove the oldest ones. Raises OSError; the ones before it stay then."""
        target = self._path(state.update)
        draft = start_folder(target)
        try:
            with disk_errors():
                found = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
                save_file(found, draft / TENSORS)
            (draft / STATE).write_text(state.model_dump_json())
            manifest = _Manifest(files=hash_folder(draft))
            (draft / MANIFEST).write_text(manifest.model_dump_json())
            finish_folder(draft, target)
        except OSError:
            discard_folder(target)
            raise
        self._prune(state)
        return target

    def _prune(self, newest: LearnerState) -> None:
        for old in self._list()[: -self._keep]:
            if newest.guard.good is None or old != self._path(newest.guard.good):
                try:
                    shutil.rmtree(old)
                except OSError as error:
                    logger.warning("an old checkpoint could not be removed: %s", error)

    def read(self, update: int) -> tuple[LearnerState, dict[str, Tensor]]:
        """The checkpoint of one update. Raises CheckpointError."""
        try:
            return _read(self._path(update))
        except UNREADABLE as error:
            raise CheckpointError(f"checkpoint {self._path(update)} cannot be used: {error}") from error

    def load(self) -> tuple[LearnerState, dict[str, Tensor]] | None:
        """The newest checkpoint that is whole, or None where there is none.

        Raises CheckpointError where there are checkpoints and all are damaged: starting anew would silently throw
        away what was learned.
        """
        problems: list[str] = []
        for folder in reversed(self._list()):
            try:
                found = _read(folder)
            except UNREADABLE as error:
                problems.append(f"{folder}: {error}")
                logger.error("checkpoint %s cannot be used, trying the one before it: %s", folder, error)
                continue
            return found
        if problems:
            raise CheckpointError(
                "every checkpoint is damaged; remove the folder to start from the base model. " + "; ".join(problems)
            )
        return None

    def _path(self, update: int) -> Path:
        return self._folder / f"u{update:06d}"

    def _list(self) -> list[Path]:
        return sorted(self._folder.glob("u[0-9]*"), key=lambda path: int(path.name[1:]))


def _read(folder: Path) -> tuple[LearnerState, dict[str, Tensor]]:
    manifest = _Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    found = hash_folder(folder)
    found.pop(MANIFEST)
    if found != manifest.files:
        wrong = sorted(name for name in found.keys() | manifest.files if found.get(name) != manifest.files.get(name))
        raise ValueError(f"{', '.join(wrong)} does not have the hash that the manifest gives")
    return LearnerState.model_validate_json((folder / STATE).read_bytes()), load_file(folder / TENSORS)
