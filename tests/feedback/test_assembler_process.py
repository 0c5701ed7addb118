"""The whole way with the real broker and processes that die: nothing acknowledged is lost, nothing is doubled."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import online_rl.tables
from feedback import tables
from feedback.assembler import Assembler
from feedback.assembler_main import DRAIN_SECONDS, POLL_RECORDS, AssemblerLoop, handled_by_learner, run_assembler
from feedback.database import open_database
from feedback.inbox import Submission, store_feedback
from feedback.kafka_log import KafkaLog
from feedback.log_contract import LogUnavailable
from feedback.outbox import OutboxRelay
from feedback.schemas import FeedbackIn, Trajectory
from feedback.tables import feedback, generations, outbox, trajectories
from online_rl.config import Settings
from tests.feedback.brokers import Broker
from tests.feedback.samples import make_generation


class World:
    def __init__(self, folder: Path) -> None:
        self.settings = Settings(data_dir=folder)
        self.engine = open_database(self.settings.database_url)
        tables.metadata.create_all(self.engine)
        online_rl.tables.metadata.create_all(self.engine)
        self.broker = Broker()
        self.broker.start()
        self.log = KafkaLog(self.broker.bootstrap_servers, client_id="test")
        self.log.ensure_topics(["generations.v1", "trajectories.v1"])
        self.processes: list[subprocess.Popen[bytes]] = []

    def answer(self, *names: str, keep: bool = True) -> None:
        """What the serving side does: it sends again until the log has it."""
        made = [make_generation(name, at=time.time(), trainable=keep) for name in names]
        events = [(generation.key, generation.model_dump_json().encode()) for generation in made]
        until(lambda: self._sent("generations.v1", events))

    def _sent(self, topic: str, events: list[tuple[str, bytes]]) -> bool:
        with contextlib.suppress(LogUnavailable):
            self.log.send(topic, events)
            return True
        return False

    def rate(self, *names: str) -> None:
        submissions = [Submission(FeedbackIn(inference_id=name, value=1), 1.0, "anonymous") for name in names]
        with self.engine.begin() as connection:
            store_feedback(connection, submissions, time.time())

    def count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        with self.engine.connect() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table).where(*where)).scalar_one()

    def in_log(self) -> list[str]:
        """The inference ids of the trajectories that lie in the log now."""
        consumer = self.log.consumer("trajectories.v1", group="check", offsets={})
        end = self.log.end_offsets("trajectories.v1")[0]
        found: list[str] = []
        deadline = time.monotonic() + 10
        while consumer.position()[0] < end and time.monotonic() < deadline:
            for record in consumer.poll(1000, 0.2):
                found.append(Trajectory.model_validate_json(record.value).inference_ids[0])
        consumer.close()
        return found

    def start_assembler(self, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.feedback.assembler_process", str(self.settings.data_dir)]
        process = subprocess.Popen(
            [*command, self.broker.bootstrap_servers], env=os.environ | environment, stderr=subprocess.DEVNULL
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.log.close()
        self.broker.kill()
        self.engine.dispose()


def until(done: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@contextlib.contextmanager
def assembler(world: World) -> Iterator[None]:
    stop = threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            run_assembler(world.settings, world.broker.bootstrap_servers, stop)
        except BaseException as error:
            failure.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not failure
    assert not thread.is_alive()


def test_from_answer_and_feedback_to_the_log(world: World) -> None:
    with assembler(world):
        world.answer("a")
        until(lambda: world.count(generations) == 1)
        world.rate("a")
        until(lambda: world.in_log() == ["a"])
    assert world.count(feedback, feedback.c.status == "used") == 1


def test_told_to_stop_it_stores_first_what_lies_in_the_log(world: World) -> None:
    """More than one read of it, sent before the stop and not yet read."""
    names = [f"i{n}" for n in range(2 * POLL_RECORDS + 1)]
    world.answer(*names)
    stop = threading.Event()
    stop.set()
    run_assembler(world.settings, world.broker.bootstrap_servers, stop)
    assert world.count(generations) == len(names)


def test_a_stop_does_not_wait_for_a_log_that_is_down(world: World) -> None:
    world.broker.kill()
    stop = threading.Event()
    stop.set()
    began = time.monotonic()
    run_assembler(world.settings, world.broker.bootstrap_servers, stop)
    assert time.monotonic() - began < DRAIN_SECONDS


def test_a_stop_waits_no_longer_than_its_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last record cannot be reached: the database takes nothing."""
    world.answer("a")
    monkeypatch.setattr(AssemblerLoop, "round", lambda _self: not time.sleep(0.01))
    relay = OutboxRelay(world.engine, world.log, handled_by_learner(world.engine))
    loop = AssemblerLoop(world.log, Assembler(world.engine, world.settings.feedback), relay)
    began = time.monotonic()
    assert not loop.drain(0.5)
    assert 0.5 <= time.monotonic() - began < 5


def test_kill_9_of_the_broker_in_the_middle_of_the_stream(world: World) -> None:
    names = [f"i{n}" for n in range(60)]
    with assembler(world):
        for number, name in enumerate(names):
            if number == 20:
                world.broker.kill()
            if number == 40:
                world.broker.start()
            if number < 20 or number >= 40:
                world.answer(name)
            world.rate(name)
        # The serving side had spooled these, or does not know that they got further than the broker that died.
        world.answer(*names[:40])
        until(lambda: world.count(trajectories) == 60)
        # The learner had trained on the first ten; all others must be in the log that came up empty.
        until(lambda: sorted(set(world.in_log())) == sorted(names))
    assert world.count(feedback, feedback.c.status == "used") == 60
    assert world.count(outbox, outbox.c.state == "waiting") == 0


def test_after_the_broker_died_only_what_was_not_trained_on_is_published_again(world: World) -> None:
    names = [f"i{n}" for n in range(6)]
    with assembler(world):
        world.answer(*names)
        world.rate(*names)
        until(lambda: sorted(world.in_log()) == names)
        with world.engine.begin() as connection:
            ids = {row.inference: row.trajectory_id for row in connection.execute(_inferences())}
            done = {"update": 1, "trained_at": time.time()}
            connection.execute(sa.insert(online_rl.tables.trainings), {"trajectory_id": ids["i0"]} | done)
            dropped = {"trajectory_id": ids["i1"], "reason": "stale", "dropped_at": time.time()}
            connection.execute(sa.insert(online_rl.tables.drops), dropped)
        world.broker.kill()
        world.broker.start()
        until(lambda: sorted(world.in_log()) == names[2:])
    assert world.count(trajectories) == 6


def _inferences() -> sa.Select[tuple[str, str]]:
    joined = trajectories.join(generations, generations.c.trajectory_id == trajectories.c.trajectory_id)
    columns = generations.c.inference_id.label("inference"), trajectories.c.trajectory_id
    return sa.select(*columns).select_from(joined)


def test_trap_15_kill_9_of_the_assembler_before_each_of_its_commits_loses_and_doubles_nothing(world: World) -> None:
    names = [f"i{n}" for n in range(8)]
    world.rate(*names[:4])
    world.answer(*names)
    world.rate(*names[4:])
    # An idle round commits too, so these land before, between and after the steps that matter.
    for number in range(1, 8):
        process = world.start_assembler(ASSEMBLER_DIES_AFTER=str(number))
        assert process.wait(timeout=60) == -9
    process = world.start_assembler()
    until(lambda: set(world.in_log()) == set(names), seconds=60)
    process.kill()
    process.wait()
    assert world.count(generations) == 8
    assert world.count(generations, generations.c.state == "released") == 8
    assert world.count(trajectories) == 8
    assert world.count(feedback, feedback.c.status == "used") == 8
    assert world.count(outbox, outbox.c.topic == "trajectories.v1") == 8


def test_trap_14_a_poisoned_message_on_the_real_log_is_a_dead_letter_and_what_follows_is_read(world: World) -> None:
    with assembler(world):
        world.log.send("generations.v1", [("bad", b"\x00not json"), ("worse", b"")])
        world.answer("a")
        world.rate("a")
        until(lambda: world.in_log() == ["a"])
        until(lambda: world.log.end_offsets("generations.v1.dlq") == {0: 2})
    assert world.count(tables.dead_letters) == 2


def test_with_the_broker_down_from_the_start_it_waits(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.kill()
    try:
        with assembler(world):
            world.rate("a")
            until(lambda: world.count(feedback, feedback.c.status == "waiting") == 1)
            world.broker.start()
            world.answer("a")
            until(lambda: world.in_log() == ["a"])
    finally:
        world.close()
