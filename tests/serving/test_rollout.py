"""The deployer's steps on a real registry in SQLite, with replicas played by hand."""

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

import online_rl.tables
import serving.tables
from feedback.database import open_database
from online_rl.registry import Registry
from online_rl.schemas import VersionState
from serving.replica_store import ReplicaCounts, ReplicaReport, ReplicaStore
from serving.rollout import ALIVE_SECONDS, ROLLOUT_SECONDS, Rollouts
from serving.tables import replicas, rollouts

PROOF = {"seconds": 0.6, "stalled_seconds": 0.5, "verdict": {"mismatch_mean": 0.03, "mismatch_kl": 0.001}}


class World:
    def __init__(self, path: Path) -> None:
        self.engine = open_database(f"sqlite:///{path}/test.db")
        online_rl.tables.metadata.create_all(self.engine)
        serving.tables.metadata.create_all(self.engine)
        self.registry = Registry(self.engine)
        self.registry.ensure_base("base")
        self.late = 0.0
        self.deployer = self.restart()
        self.stores: dict[str, ReplicaStore] = {}

    def restart(self) -> Rollouts:
        self.deployer = Rollouts(self.engine, self.registry, lambda: time.time() + self.late)
        return self.deployer

    def add_replica(self, name: str = "policy-0") -> None:
        self.stores[name] = ReplicaStore(self.engine, name)
        self.stores[name].register(0)
        self.report(0, name)

    def report(self, version: int, name: str = "policy-0", **fields) -> None:
        report = ReplicaReport("serving", version, proof=PROOF if version else {})
        for field, value in fields.items():
            object.__setattr__(report, field, value)
        self.stores[name].report(report)

    def beat_late(self) -> None:
        """Every replica says at the deployer's own time that it lives."""
        with self.engine.begin() as connection:
            connection.execute(sa.update(replicas).values(heartbeat_at=time.time() + self.late))

    def candidate(self, version: int) -> None:
        self.registry.add_candidate(version, 0, f"v{version}", {})

    def steps(self) -> list[str]:
        done = []
        while (step := self.deployer.step()) is not None:
            done.append(step)
        return done

    def state(self, version: int) -> VersionState:
        return self.registry.get(version).state


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.add_replica()
    return world


def test_a_candidate_is_live_once_every_replica_proved_it(world: World):
    world.add_replica("policy-1")
    world.candidate(1)
    world.steps()
    assert [store.assigned_version() for store in world.stores.values()] == [1, 1]
    world.report(1)
    world.steps()
    assert world.state(1) is VersionState.CANDIDATE
    world.report(1, "policy-1")
    world.steps()
    assert world.state(1) is VersionState.LIVE
    assert world.registry.get(1).metrics["mismatch_mean"] == 0.03
    assert world.registry.get(1).metrics["swap_seconds"] == 0.6


def test_a_refusal_rejects_the_candidate_with_its_reason_and_brings_the_former_back(world: World):
    world.candidate(1)
    world.steps()
    world.report(0, refused_version=1, detail="model.safetensors does not have the hash")
    world.steps()
    assert world.state(1) is VersionState.REJECTED
    assert world.registry.get(1).reason == "model.safetensors does not have the hash"
    assert world.stores["policy-0"].assigned_version() == 0
    assert world.steps() == []


def test_of_several_candidates_only_the_newest_is_tried(world: World):
    for version in (1, 2, 3):
        world.candidate(version)
    world.steps()
    assert [world.state(version) for version in (1, 2)] == [VersionState.REJECTED] * 2
    assert world.registry.get(1).reason == "superseded"
    assert world.stores["policy-0"].assigned_version() == 3


def test_a_rollout_in_progress_is_finished_before_the_next_candidate(world: World):
    world.candidate(1)
    world.steps()
    world.candidate(2)
    world.steps()
    assert world.stores["policy-0"].assigned_version() == 1
    world.report(1)
    world.steps()
    assert world.state(1) is VersionState.LIVE
    assert world.stores["policy-0"].assigned_version() == 2


def test_without_a_living_replica_nothing_is_promoted(world: World):
    world.candidate(1)
    world.steps()
    world.report(1)
    world.late = ALIVE_SECONDS + 1
    world.steps()
    assert world.state(1) is VersionState.CANDIDATE


def test_a_replica_that_takes_too_long_rejects_the_candidate(world: World):
    world.candidate(1)
    world.steps()
    with world.engine.begin() as connection:
        connection.execute(sa.update(rollouts).values(started_at=time.time() - ROLLOUT_SECONDS - 1))
    world.report(0)
    world.steps()
    assert world.state(1) is VersionState.REJECTED


def test_a_replica_that_joins_during_a_rollout_takes_part_and_has_the_whole_time(world: World):
    world.candidate(1)
    world.steps()
    world.report(1)
    world.late = ROLLOUT_SECONDS - 1
    world.add_replica("policy-1")
    world.beat_late()
    world.steps()
    assert world.stores["policy-1"].assigned_version() == 1
    assert world.state(1) is VersionState.CANDIDATE
    world.late = 2 * ROLLOUT_SECONDS - 2
    world.beat_late()
    world.steps()
    assert world.state(1) is VersionState.CANDIDATE
    world.report(1, "policy-1")
    world.beat_late()
    world.steps()
    assert world.state(1) is VersionState.LIVE


def test_a_replica_that_starts_again_and_again_gets_no_more_time(world: World):
    world.candidate(1)
    world.steps()
    world.late = ROLLOUT_SECONDS + 1
    world.stores["policy-0"].register(0)
    world.beat_late()
    world.steps()
    assert world.state(1) is VersionState.REJECTED


def test_a_rollback_by_hand_reaches_the_replicas(world: World):
    world.candidate(1)
    world.steps()
    world.report(1)
    world.steps()
    world.registry.roll_back(0, reason="worse")
    world.steps()
    assert world.stores["policy-0"].assigned_version() == 0


def test_what_is_made_live_by_hand_and_refused_is_undone(world: World):
    """Its merged weights may be gone. A replica that starts again must find a live version that it can load."""
    for version in (1, 2):
        world.candidate(version)
        world.steps()
        world.report(version)
        world.steps()
    world.registry.roll_back(1, reason="worse")
    world.steps()
    assert world.stores["policy-0"].assigned_version() == 1
    world.report(2, refused_version=1, detail="merged/ is missing")
    world.steps()
    assert world.state(2) is VersionState.LIVE
    assert world.state(1) is VersionState.ROLLED_BACK
    assert "merged/ is missing" in (world.registry.get(1).reason or "")
    assert world.stores["policy-0"].assigned_version() == 2


@pytest.mark.parametrize("by_hand", ["roll back", "promote"])
def test_what_is_made_live_by_hand_during_a_rollout_stays(world: World, by_hand: str):
    world.candidate(1)
    world.steps()
    world.report(1)
    world.steps()
    world.candidate(2)
    world.steps()
    assert world.stores["policy-0"].assigned_version() == 2
    if by_hand == "roll back":
        world.registry.roll_back(0, reason="worse")
    else:
        world.registry.transition(0, VersionState.LIVE, reason="better")
    world.report(2)
    world.steps()
    assert world.state(2) is VersionState.REJECTED
    assert world.state(0) is VersionState.LIVE
    assert world.stores["policy-0"].assigned_version() == 0


@pytest.mark.parametrize("killed_before", ["begin", "finish"])
def test_a_deployer_that_is_killed_between_two_transactions_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, killed_before: str
):
    """Killed after the registry was moved and before the rows of the replicas were."""

    class Killed(BaseException):
        pass

    def die(*_, **__):
        raise Killed

    world.candidate(1)
    if killed_before == "begin":
        world.candidate(2)  # version 1 is superseded first
        monkeypatch.setattr(sa, "insert", die)
        with pytest.raises(Killed):
            world.deployer.step()
        monkeypatch.undo()
        world.restart()
        world.steps()
        assert world.stores["policy-0"].assigned_version() == 2
        return
    world.steps()
    world.report(1)
    monkeypatch.setattr(Rollouts, "_finish", die)
    with pytest.raises(Killed):
        world.deployer.step()
    monkeypatch.undo()
    assert world.state(1) is VersionState.LIVE
    world.restart()
    world.steps()
    with world.engine.connect() as connection:
        assert connection.execute(sa.select(rollouts.c.state)).scalars().all() == ["live"]
    assert world.steps() == []


def test_counters_go_on_over_a_restart_and_an_assignment_stays(world: World):
    world.report(0, counts=ReplicaCounts(requests=10, failed_requests=1))
    world.candidate(1)
    world.steps()
    again = ReplicaStore(world.engine, "policy-0")
    again.register(0)
    assert again.assigned_version() == 1
    again.report(ReplicaReport("serving", 0, counts=ReplicaCounts(requests=5)))
    with world.engine.connect() as connection:
        row = connection.execute(sa.select(replicas)).one()
    assert (row.requests, row.failed_requests) == (15, 1)
