"""The replica's loop: follows assignments, refuses what is bad, and answers on while the database is away."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import exc

from feedback.database import ANY_FAULT
from online_rl.schemas import PolicyVersion, VersionState
from serving.artifact import Artifact, ArtifactRefused
from serving.gate import Gate
from serving.replica import Replica
from serving.replica_store import ReplicaCounts, ReplicaReport
from serving.swap import InPlaceSwap
from serving.weight_labels import WeightLabels
from tests.serving.fakes import FakeEngine, fake_artifact


class DatabaseAway(Exception):
    pass


class Rows:
    """The registry and the replica's row, in memory."""

    def __init__(self) -> None:
        self.assigned = 0
        self.reports: list[ReplicaReport] = []
        self.away = False
        self.fault: Exception = DatabaseAway()

    def _check(self) -> None:
        if self.away:
            raise self.fault

    def get(self, version: int) -> PolicyVersion:
        self._check()
        return PolicyVersion(
            version=version,
            parent=0,
            state=VersionState.CANDIDATE,
            artifact=f"v{version}",
            created_at=0.0,
            changed_at=0.0,
        )

    def live(self) -> PolicyVersion | None:
        return self.get(0)

    def register(self, _assigned_version: int) -> None:
        self._check()

    def assigned_version(self) -> int:
        self._check()
        return self.assigned

    def report(self, report: ReplicaReport) -> None:
        self._check()
        self.reports.append(report)


class World:
    def __init__(self, unavailable: tuple[type[Exception], ...] = (DatabaseAway,)) -> None:
        self.engine = FakeEngine()
        self.rows = Rows()
        self.refused: set[int] = set()
        swap = InPlaceSwap(self.engine, Gate(), WeightLabels(), drain_seconds=0, tolerance=0.15, model_name="policy")
        self.replica = Replica(
            swap,
            self.rows,
            self.rows,
            verify=self.verify,
            counts=ReplicaCounts,
            unavailable=unavailable,
            poll_seconds=0.001,
            heartbeat_seconds=0.01,
        )

    def verify(self, wanted: PolicyVersion) -> Artifact:
        if wanted.version in self.refused:
            raise ArtifactRefused(f"version {wanted.version} is damaged")
        return fake_artifact(wanted.version, None if wanted.version == 0 else 0)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)

    @property
    def last(self) -> ReplicaReport:
        return self.rows.reports[-1]


@pytest.fixture
async def world():
    world = World()
    await world.replica.load_first()
    running = asyncio.create_task(world.replica.run())
    yield world
    running.cancel()


async def test_the_live_version_is_loaded_first_and_an_assigned_one_follows(world: World):
    assert (world.last.state, world.last.actual_version) == ("serving", 0)
    world.rows.assigned = 1
    await world.until(lambda: world.last.actual_version == 1)
    assert world.engine.weights == "v1"
    assert world.last.proof["verdict"]["accepted"]
    assert "swapping" in [report.state for report in world.rows.reports]


async def test_trap_3_a_damaged_version_is_refused_once_and_the_former_answers_on(world: World):
    world.refused = {1}
    world.rows.assigned = 1
    await world.until(lambda: world.last.refused_version == 1)
    assert (world.last.actual_version, world.engine.weights) == (0, "v0")
    assert "damaged" in world.last.detail
    reported = len(world.rows.reports)
    await world.until(lambda: len(world.rows.reports) > reported + 2)
    assert [report.state for report in world.rows.reports[reported:]] == ["serving"] * (
        len(world.rows.reports) - reported
    )


async def test_a_refusal_is_forgotten_when_the_former_is_assigned_again(world: World):
    world.refused = {1}
    world.rows.assigned = 1
    await world.until(lambda: world.last.refused_version == 1)
    world.rows.assigned = 0
    await world.until(lambda: world.last.refused_version is None)


async def test_a_database_that_is_away_changes_nothing_and_assignments_go_on_after(world: World):
    world.rows.away = True
    await asyncio.sleep(0.02)
    assert world.replica.unusable is None
    world.rows.assigned = 1
    world.rows.away = False
    await world.until(lambda: world.last.actual_version == 1)


@pytest.mark.parametrize("kind", [exc.OperationalError, exc.InternalError, exc.ProgrammingError])
async def test_whatever_the_database_refuses_the_replica_goes_on(kind: type[exc.DBAPIError]):
    """A standby that takes no writes, rights that were revoked: `ANY_FAULT` is what the replica is composed with."""
    world = World(unavailable=ANY_FAULT)
    await world.replica.load_first()
    running = asyncio.create_task(world.replica.run())
    world.rows.fault = kind("UPDATE", None, Exception("no"))
    world.rows.away = True
    await asyncio.sleep(0.02)
    assert not running.done()
    world.rows.assigned = 1
    world.rows.away = False
    await world.until(lambda: world.last.actual_version == 1)
    running.cancel()


async def test_a_replica_that_cannot_go_back_says_that_it_is_unusable(world: World):
    world.rows.assigned = 1
    await world.until(lambda: world.last.actual_version == 1)
    world.engine.broken = {"v1", "v2"}
    world.rows.assigned = 2
    await world.until(lambda: world.replica.unusable is not None)
    await world.until(lambda: world.last.state == "failed")


async def test_trap_6_an_engine_that_refuses_a_verb_ends_the_replica_and_not_the_delivery_in_silence(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    async def refuse() -> None:
        raise RuntimeError("the engine does not pause")

    monkeypatch.setattr(world.engine, "pause", refuse)
    world.rows.assigned = 1
    await world.until(lambda: world.last.state == "failed")
    assert world.replica.unusable is not None
    assert "does not pause" in world.last.detail


async def test_heartbeats_go_on_during_a_long_delivery(world: World):
    released = asyncio.Event()
    original = world.engine.reload_weights

    async def slow(folder):
        await released.wait()
        await original(folder)

    world.engine.reload_weights = slow
    world.rows.assigned = 1
    await world.until(lambda: [report.state for report in world.rows.reports].count("swapping") > 3)
    released.set()
    await world.until(lambda: world.last.actual_version == 1)
