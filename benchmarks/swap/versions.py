"""Version n of a long line: one of a few made artifacts, under its own number and manifest.

The favourites come round: version n favours what version n − K favours, for K favourites. Artifact 1 has the base model
as its parent, artifacts 2 to K + 1 each the one before, so that the probes of every version are true of its parent.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from online_rl.merged_weights import link_or_copy
from online_rl.schemas import MANIFEST, Manifest, PolicyVersion, VersionState

RANK = 8
"""Of the adapters."""


@dataclass(frozen=True, slots=True)
class Made:
    """One made artifact, but for its manifest. `files`: path in the folder → SHA-256."""

    folder: Path
    files: Mapping[str, str]


def choose_made(version: int, favourites: int) -> int:
    """Which of the K + 1 made artifacts (from 1) is version `version` (from 1), for K `favourites`."""
    return version if version <= favourites + 1 else (version - 2) % favourites + 2


class Versions:
    """The folders of the versions, made when they are wanted."""

    def __init__(self, folder: Path, base_folder: Path, base_sha256: str, made: Sequence[Made]) -> None:
        self._folder = folder
        self._base_folder = base_folder
        self._base_sha256 = base_sha256
        self._made = made

    @property
    def favourites(self) -> int:
        return len(self._made) - 1

    def publish(self, version: int) -> Path:
        """Make the folder of `version`."""
        made = self._made[choose_made(version, self.favourites) - 1]
        folder = self._find(version)
        for name in made.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(made.folder / name, folder / name)
        manifest = Manifest(
            version=version,
            parent=version - 1,
            kind="lora",
            base_sha256=self._base_sha256,
            files=dict(made.files),
            lora_rank=RANK,
            update=version,
            created_at=time.time(),
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json())
        return folder

    def remove(self, version: int) -> None:
        """Of the folder only: what was made stays."""
        if version > 0:
            shutil.rmtree(self._find(version), ignore_errors=True)

    def describe(self, version: int) -> PolicyVersion:
        """As the registry would."""
        return PolicyVersion(
            version=version,
            parent=version - 1 if version else None,
            state=VersionState.LIVE,
            artifact=str(self._find(version) if version else self._base_folder),
            created_at=0.0,
            changed_at=0.0,
        )

    def _find(self, version: int) -> Path:
        return self._folder / f"v{version:06d}"
