"""Copies of a user's answers in the files of versions go, and every version that is in use can still be proved."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from online_rl.durable_files import hash_file
from online_rl.erased_probes import scrub_probes
from online_rl.registry import Registry
from online_rl.retention import Undeliverable, deliverable
from online_rl.schemas import MANIFEST, PROBES, Manifest, Probe, VersionState
from online_rl.tables import metadata


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    metadata.create_all(engine)
    registry = Registry(engine)
    registry.ensure_base(str(tmp_path / "base"))
    return registry


def add_version(registry: Registry, folder: Path, version: int, *sequences: tuple[int, ...]) -> Path:
    artifact = folder / "versions" / f"v{version:06d}"
    artifact.mkdir(parents=True)
    probes = [
        Probe(token_ids=tokens, positions=(1,), logprobs=(-1.0,), parent_logprobs=(-2.0,)).model_dump(mode="json")
        for tokens in sequences
    ]
    (artifact / PROBES).write_text(json.dumps(probes))
    files = {PROBES: hash_file(artifact / PROBES)}
    manifest = Manifest(
        version=version, parent=version - 1, kind="lora", base_sha256="0" * 64, files=files, created_at=0.0
    )
    (artifact / MANIFEST).write_text(manifest.model_dump_json())
    registry.add_candidate(version, version - 1, str(artifact), {})
    registry.transition(version, VersionState.LIVE)
    return artifact


def sequences(artifact: Path) -> list[list[int]]:
    return [probe["token_ids"] for probe in json.loads((artifact / PROBES).read_text())]


def test_only_the_user_s_go_and_the_manifest_agrees(registry: Registry, tmp_path: Path) -> None:
    artifact = add_version(registry, tmp_path, 1, (1, 2), (3, 4), (5, 6))
    untouched = add_version(registry, tmp_path, 2, (5, 6))
    before = untouched.stat().st_mtime_ns
    found = scrub_probes(registry.list(), lambda tokens: tuple(tokens) in {(1, 2), (3, 4)})
    assert (found.removed, found.undeliverable, found.kept) == (2, [], [])
    assert sequences(artifact) == [[5, 6]]
    manifest = Manifest.model_validate_json((artifact / MANIFEST).read_bytes())
    assert manifest.files == {PROBES: hash_file(artifact / PROBES)}
    assert sorted(path.name for path in artifact.iterdir()) == [MANIFEST, PROBES]
    assert sorted(path.name for path in artifact.parent.iterdir()) == ["v000001", "v000002"]
    assert untouched.stat().st_mtime_ns == before
    with deliverable(registry.get(1), registry):
        pass
    assert scrub_probes(registry.list(), lambda tokens: tuple(tokens) == (1, 2)).removed == 0


def test_a_version_in_use_keeps_its_last_ones_until_another_is_live(registry: Registry, tmp_path: Path) -> None:
    artifact = add_version(registry, tmp_path, 1, (1, 2))
    found = scrub_probes(registry.list(), lambda _tokens: True)
    assert (found.removed, found.kept) == (0, [1])
    assert sequences(artifact) == [[1, 2]]
    add_version(registry, tmp_path, 2, (5, 6))
    found = scrub_probes(registry.list(), lambda tokens: tuple(tokens) == (1, 2))
    assert (found.removed, found.kept, found.undeliverable) == (1, [], [1])
    assert sequences(artifact) == []


def test_one_that_has_none_left_is_not_promoted(registry: Registry, tmp_path: Path) -> None:
    add_version(registry, tmp_path, 1, (1, 2))
    add_version(registry, tmp_path, 2, (5, 6))
    scrub_probes(registry.list(), lambda tokens: tuple(tokens) == (1, 2))
    with pytest.raises(Undeliverable, match="erased"), deliverable(registry.get(1), registry):
        pass


def test_what_is_damaged_or_elsewhere_is_passed_over(registry: Registry, tmp_path: Path) -> None:
    add_version(registry, tmp_path, 1, (1, 2))
    artifact = add_version(registry, tmp_path, 2, (1, 2), (5, 6))
    (tmp_path / "versions" / "v000001" / PROBES).write_text("{")
    registry.add_candidate(3, 2, "s3://elsewhere/v000003", {})
    assert scrub_probes(registry.list(), lambda tokens: tuple(tokens) == (1, 2)).removed == 1
    assert sequences(artifact) == [[5, 6]]
