"""Probes are token sequences of trajectories that a version was trained on: those of an erased user go, too.

A version that is in use must be provable when its replica starts again, so its last probes stay until another one is
live; an older one that has none left can be delivered no more (`online_rl.retention`).
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import RootModel, ValidationError

from online_rl.durable_files import hash_file, locked, sync
from online_rl.schemas import BASE_VERSION, MANIFEST, PROBES, Manifest, PolicyVersion, Probe, VersionState

logger = logging.getLogger(__name__)

_IN_USE = frozenset({VersionState.CANDIDATE, VersionState.CANARY, VersionState.LIVE})
_Probes = RootModel[list[Probe]]


@dataclass(slots=True)
class Scrubbed:
    """Version numbers, by what became of their probes."""

    removed: int = 0
    """Probes."""
    undeliverable: list[int] = field(default_factory=list)
    """Have no probe left."""
    kept: list[int] = field(default_factory=list)
    """Are in use and have no other probes: to be done again once another version is live."""


def scrub_probes(versions: Sequence[PolicyVersion], erased: Callable[[Sequence[int]], bool]) -> Scrubbed:
    """Remove the probes whose token ids are `erased`; what is not on this machine is passed over. Raises OSError."""
    found = Scrubbed()
    for version in versions:
        folder = Path(version.artifact)
        if version.version != BASE_VERSION and (folder / PROBES).is_file() and (folder / MANIFEST).is_file():
            with locked(folder):
                _scrub(folder, version, erased, found)
    return found


def _scrub(folder: Path, version: PolicyVersion, erased: Callable[[Sequence[int]], bool], found: Scrubbed) -> None:
    try:
        probes = _Probes.model_validate_json((folder / PROBES).read_bytes()).root
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except ValidationError as error:
        logger.warning("version %d is damaged, and no replica loads it: %s", version.version, error.title)
        return
    left = [probe for probe in probes if not erased(probe.token_ids)]
    if len(left) == len(probes):
        return
    if not left and version.state in _IN_USE:
        found.kept.append(version.version)
        return
    if not left:
        found.undeliverable.append(version.version)
    found.removed += len(probes) - len(left)
    draft = _write(folder / PROBES, _Probes(left).model_dump_json())
    files = manifest.files | {PROBES: hash_file(draft)}
    new_manifest = _write(folder / MANIFEST, manifest.model_copy(update={"files": files}).model_dump_json(indent=2))
    # Between the two a replica that reads the folder refuses it, and asks again.
    os.replace(draft, folder / PROBES)
    os.replace(new_manifest, folder / MANIFEST)
    sync(folder)


def _write(path: Path, text: str) -> Path:
    """Beside the folder: what lies in it and is not in the manifest would have the version refused."""
    draft = path.parent.with_name(f".{path.parent.name}.{path.name}")
    draft.write_text(text, encoding="utf-8")
    sync(draft)
    return draft
