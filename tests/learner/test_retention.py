"""Which merged weights stay on disk, and that a version whose weights were removed can be delivered again."""

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from online_rl.cli.errors import expected_errors
from online_rl.dashboard.deliveries import RegistryDeliveries
from online_rl.durable_files import Busy, hash_folder, locked
from online_rl.publish import Publisher
from online_rl.registry import Registry
from online_rl.retention import Undeliverable, choose_removable, keep_newest
from online_rl.schemas import PolicyVersion, VersionState
from online_rl.tables import metadata
from tests.learner.test_publish import change
from tests.learner.tiny import make_models, make_trajectories


def version(number: int, state: VersionState, artifact: Path = Path("x")) -> PolicyVersion:
    return PolicyVersion(
        version=number, parent=None, state=state, artifact=str(artifact), created_at=0.0, changed_at=0.0
    )


def test_live_coming_and_the_newest_former_ones_stay():
    versions = [
        version(0, VersionState.RETIRED),
        version(1, VersionState.RETIRED),
        version(2, VersionState.REJECTED),
        version(3, VersionState.ROLLED_BACK),
        version(4, VersionState.RETIRED),
        version(5, VersionState.LIVE),
        version(6, VersionState.CANDIDATE),
    ]
    assert [known.version for known in choose_removable(versions, 2)] == [1, 2]


def test_the_base_model_is_never_removed():
    assert choose_removable([version(0, VersionState.RETIRED)], 1) == []


class World:
    """Real artifacts of the tiny model, and a registry in which each was live once."""

    def __init__(self, folder: Path, model_folder: Path) -> None:
        policy, _ = make_models(model_folder)
        self.registry = Registry(sa.create_engine(f"sqlite:///{folder / 'test.db'}"))
        metadata.create_all(self.registry._engine)
        self.registry.ensure_base(str(model_folder))
        self.publisher = Publisher(folder / "versions", model_folder, policy, write_merged=True)
        self.deliveries = RegistryDeliveries(self.registry)
        for number in (1, 2, 3):
            change(policy, number)
            artifact = self.publisher.publish(
                number, number - 1, update=number, recent=make_trajectories(2), created_at=1.0
            )
            self.registry.add_candidate(number, number - 1, str(artifact), {})
            self.registry.transition(number, VersionState.LIVE)

    def folder(self, number: int) -> Path:
        return self.publisher.folder(number)

    def has_merged(self) -> list[int]:
        return [number for number in (1, 2, 3) if (self.folder(number) / "merged").exists()]

    def live(self) -> int:
        live = self.registry.live()
        assert live is not None
        return live.version


@pytest.fixture
def world(tmp_path: Path, model_folder: Path) -> World:
    return World(tmp_path, model_folder)


def test_only_merged_weights_are_removed(world: World):
    keep_newest(world.registry, 1)
    assert world.has_merged() == [2, 3]
    assert (world.folder(1) / "adapter" / "adapter_model.safetensors").is_file()


def test_an_unfinished_artifact_is_left_alone(world: World):
    (world.folder(1) / "manifest.json").unlink()
    keep_newest(world.registry, 1)
    assert world.has_merged() == [1, 2, 3]


@pytest.mark.parametrize("by", ["promote", "roll back"])
def test_a_version_whose_weights_were_removed_is_merged_again_to_the_byte(world: World, by: str):
    keep_newest(world.registry, 1)
    assert not (world.folder(1) / "merged").exists()
    if by == "promote":
        world.deliveries.promote(1, "better")
    else:
        world.deliveries.roll_back(1, "worse")
    assert world.live() == 1
    manifest = json.loads((world.folder(1) / "manifest.json").read_text())
    made = {name: digest for name, digest in hash_folder(world.folder(1)).items() if name != "manifest.json"}
    assert made == manifest["files"]
    assert sorted(path.name for path in world.folder(1).parent.iterdir()) == ["v000001", "v000002", "v000003"]
    keep_newest(world.registry, 1)
    assert 1 in world.has_merged()


@pytest.mark.parametrize("damage", ["half removed", "altered"])
def test_weights_that_are_not_whole_are_made_again(world: World, damage: str):
    weights = world.folder(1) / "merged" / "model.safetensors"
    published = weights.read_bytes()
    weights.unlink()
    if damage == "altered":
        weights.write_bytes(published[:-1] + b"x")
    world.deliveries.promote(1, "better")
    assert weights.read_bytes() == published


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def no_adapter(folder: Path) -> None:
    change_manifest(folder, kind="full")


def other_base(folder: Path) -> None:
    change_manifest(folder, base_sha256="0" * 64)


def other_result(folder: Path) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    change_manifest(folder, files=files | {"merged/model.safetensors": "0" * 64})


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def damaged_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def altered_adapter(folder: Path) -> None:
    with (folder / "adapter" / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(100)


def lost_adapter(folder: Path) -> None:
    shutil.rmtree(folder / "adapter")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_adapter, r"without an adapter .* swap\.keep_versions"),
        (other_base, r"another base model than serving\.model"),
        (other_result, r"merged/model\.safetensors comes out differently"),
        (no_manifest, r"cannot be read .* where data_dir is"),
        (damaged_manifest, "is damaged"),
        (lost_adapter, r"adapter/adapter_config\.json of version 1 is gone or damaged"),
        (altered_adapter, r"adapter/adapter_model\.safetensors of version 1 is gone or damaged"),
    ],
)
def test_what_cannot_be_delivered_again_is_refused_at_once(world: World, damage, message: str):
    keep_newest(world.registry, 1)
    damage(world.folder(1))
    for attempt in (world.deliveries.promote, world.deliveries.roll_back):
        with pytest.raises(Undeliverable, match=message) as caught:
            attempt(1, "by hand")
        assert isinstance(caught.value, expected_errors())
    assert world.live() == 3
    assert world.has_merged() == [2, 3]


def hold(folder: Path, held, release) -> None:
    with locked(folder):
        held.set()
        release.wait(30)


def test_what_another_process_is_promoting_is_not_removed(world: World):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(world.folder(1), held, release))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(Busy), locked(world.folder(1), wait=False):
            pass
        keep_newest(world.registry, 1)
        assert 1 in world.has_merged()
    finally:
        release.set()
        other.join()
    keep_newest(world.registry, 1)
    assert 1 not in world.has_merged()


def test_what_was_promoted_since_the_versions_were_listed_stays(world: World, monkeypatch: pytest.MonkeyPatch):
    listed = world.registry.list()
    world.deliveries.promote(1, "better")
    monkeypatch.setattr(world.registry, "list", lambda: listed)
    keep_newest(world.registry, 1)
    assert 1 in world.has_merged()
