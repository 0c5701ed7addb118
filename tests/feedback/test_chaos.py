"""The accounts of `benchmarks.chaos` must find what they are there to find: planted losses, doubles and repetitions."""

import random
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from benchmarks.chaos import find_misses
from benchmarks.chaos_accounts import Accounts, Acknowledged, describe, find_fate, settle_accounts, unsettled
from benchmarks.chaos_faults import KILLED, plan_faults
from feedback.assembler import Assembler
from feedback.inbox import Submission, store_feedback
from feedback.lookup import retract_feedback
from feedback.schemas import FeedbackIn
from feedback.settings import FeedbackSettings
from feedback.tables import feedback, trajectories
from online_rl.ledger import Ledger
from online_rl.tables import updates
from tests.feedback.samples import as_record, make_generation


class World:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 2000.0
        self.assembler = Assembler(engine, FeedbackSettings(orphan_seconds=50), lambda: self.now)
        self.ledger = Ledger(engine)

    def rate(self, name: str, key: str, *, answered: bool = True) -> Acknowledged:
        if answered:
            self.assembler.store([as_record(make_generation(name, at=1990.0))])
        said = FeedbackIn(inference_id=name, value=1, idempotency_key=key)
        with self.engine.begin() as connection:
            found = store_feedback(connection, [Submission(said, 1.0, "anonymous")], self.now)
        self.assembler.join_new()
        return Acknowledged(key, name, [found[0].feedback_id])

    def trajectory(self, name: str) -> str:
        with self.engine.connect() as connection:
            return connection.execute(
                sa.select(trajectories.c.trajectory_id).where(trajectories.c.episode_id == name)
            ).scalar_one()

    def train(self, update: int, *names: str) -> None:
        self.ledger.record_update(update, 0, [self.trajectory(name) for name in names], {}, 1.0)

    def settle(self, *acknowledged: Acknowledged) -> Accounts:
        return settle_accounts(self.engine, acknowledged)


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def test_every_fate(world: World) -> None:
    said = [world.rate(name, name) for name in ("trained", "stale", "waits")]
    world.train(1, "trained")
    world.ledger.record_drops({world.trajectory("stale"): "stale"}, 1.0)
    said.append(world.rate("trained", "late"))
    gone = world.rate("lost-answer", "orphan", answered=False)
    unsaid = world.rate("unsaid", "unsaid", answered=False)
    assert retract_feedback(world.engine, unsaid.feedback_ids[0], "anonymous") is not None
    unsaid.retracted = True
    assert unsettled(world.engine) == 2
    world.now = 3000.0
    world.assembler.count_orphans()
    assert unsettled(world.engine) == 0
    found = world.settle(*said, gone, unsaid)
    assert found.fates == {"dropped": 1, "late": 1, "orphaned": 1, "retracted": 1, "stored": 1, "trained": 1}
    assert (found.lost, found.duplicated, found.trained_twice, found.dropped) == ([], [], 0, {"stale": 1})
    assert sum(found.fates.values()) == found.acknowledged == 6
    assert describe(found)["orphaned"] == 1


def test_what_was_acknowledged_and_is_not_stored_is_lost(world: World) -> None:
    one = world.rate("a", "k")
    with world.engine.begin() as connection:
        connection.execute(sa.delete(feedback))
    assert world.settle(one).lost == ["k"]


def test_a_retraction_that_was_acknowledged_and_is_not_stored_is_lost(world: World) -> None:
    one = world.rate("a", "k")
    one.retracted = True
    assert world.settle(one).lost == ["k"]


def test_feedback_that_is_said_to_be_used_and_is_in_nothing_is_lost(world: World) -> None:
    one = world.rate("a", "k")
    with world.engine.begin() as connection:
        connection.execute(sa.delete(trajectories))
    assert world.settle(one).lost == ["k"]


def test_one_key_that_was_answered_with_two_ids_is_doubled(world: World) -> None:
    one = world.rate("a", "k")
    one.feedback_ids.append("fb_other")
    assert world.settle(one).duplicated == ["k"]
    stored = Acknowledged("k", "a", ["fb_other"])
    assert world.settle(stored).duplicated == ["k"]


def test_an_answer_in_two_trajectories_is_doubled(world: World) -> None:
    one = world.rate("a", "k")
    with world.engine.begin() as connection:
        row = dict(connection.execute(sa.select(trajectories)).mappings().one())
        again = {"seq": row["seq"] + 1, "trajectory_id": "traj_again"}
        connection.execute(sa.insert(trajectories).values(row | again))
        assert zlib.decompress(row["event"])
    assert world.settle(one).duplicated == ["a"]


def test_a_trajectory_in_two_updates_trained_twice(world: World) -> None:
    one = world.rate("a", "k")
    world.train(1, "a")
    assert world.settle(one).trained_twice == 0
    with world.engine.begin() as connection:
        row = {"update": 2, "version": 0, "trajectories": 1, "metrics": {}, "created_at": 1.0}
        connection.execute(sa.insert(updates).values(row))
    assert world.settle(one).trained_twice == 1


def test_a_status_nobody_knows_is_no_fate() -> None:
    row: Any = SimpleNamespace(status="nonsense", retracted_at=None)
    assert find_fate(Acknowledged("k", "a", ["f"]), row, None) is None


GOOD = {
    "lost": 0,
    "duplicated": 0,
    "trained_twice": 0,
    "acknowledged": 2,
    "fates": {"trained": 1, "late": 1},
    "kills": {"broker": 1},
    "paused": 1,
    "disk_full": 1,
    "unexpected": [],
}


@pytest.mark.parametrize(
    "bad",
    [
        {"lost": 1, "acknowledged": 3},
        {"duplicated": 1},
        {"trained_twice": 1},
        {"acknowledged": 3},
        {"fates": {"late": 2}},
        {"kills": {"broker": 0}},
        {"paused": 0},
        {"disk_full": 0},
        {"unexpected": ["POST 409"]},
    ],
)
def test_each_mark_can_be_missed(bad: dict[str, Any]) -> None:
    assert find_misses(GOOD) == []
    assert len(find_misses(GOOD | bad)) == 1


def test_every_kind_of_fault_is_in_the_plan() -> None:
    kinds = (*KILLED, "paused", "disk_full", "postgresql")
    for seed in range(20):
        planned = plan_faults(600, kinds, random.Random(seed))
        assert len(planned) == 27
        assert set(planned) == set(kinds)
        assert set(plan_faults(30, kinds, random.Random(seed))) == set(kinds)
