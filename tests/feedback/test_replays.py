"""A topic is read again from a time or an offset, and nothing that was handled has an effect again."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.assembler import Assembler
from feedback.assembler_main import GROUP, AssemblerLoop
from feedback.inbox import Submission, store_feedback
from feedback.log_contract import LogUnavailable
from feedback.outbox import OutboxRelay
from feedback.replays import ReplayingConsumer, read_replay, request_replay
from feedback.schemas import FeedbackIn
from feedback.settings import FeedbackSettings
from feedback.tables import feedback, generations, outbox, trajectories
from tests.fakes.log import FakeLog
from tests.feedback.samples import make_generation

TOPIC = "generations.v1"


class Reader:
    """The assembler's loop on a fake log, with a clock for looking after replays."""

    def __init__(self, engine: Engine, log: FakeLog | None = None) -> None:
        self.engine = engine
        self.log = log or FakeLog()
        self.now = 0.0
        relay = OutboxRelay(engine, self.log, lambda ids: set())
        self.loop = AssemblerLoop(self.log, Assembler(engine, FeedbackSettings()), relay, self.follow)  # type: ignore[arg-type]

    def follow(self, consumer: Any) -> ReplayingConsumer:
        return ReplayingConsumer(consumer, TOPIC, self.engine, lambda: self.now)

    def answer(self, *names: str) -> None:
        for name in names:
            generation = make_generation(name, at=time.time())
            self.log.send(TOPIC, [(generation.key, generation.model_dump_json().encode())])

    def rate(self, *names: str) -> None:
        with self.engine.begin() as connection:
            said = [Submission(FeedbackIn(inference_id=name, value=1), 1.0, "anonymous") for name in names]
            store_feedback(connection, said, time.time())

    def rounds(self, count: int = 3) -> None:
        for _ in range(count):
            self.now += 2.0
            assert self.loop.round()

    def state(self) -> dict[str, Any]:
        with self.engine.connect() as connection:
            return {
                table.name: connection.execute(sa.select(*columns).order_by(table.c.seq)).all()
                for table, columns in (
                    (generations, (generations.c.inference_id, generations.c.state, generations.c.stored_at)),
                    (feedback, (feedback.c.feedback_id, feedback.c.status)),
                    (trajectories, (trajectories.c.trajectory_id, trajectories.c.released_at)),
                    (outbox, (outbox.c.topic, outbox.c.key, outbox.c.state)),
                )
            }


@pytest.fixture
def reader(engine: Engine) -> Iterator[Reader]:
    made = Reader(engine)
    yield made
    made.loop.close()


def test_what_was_handled_has_no_effect_again(reader: Reader) -> None:
    reader.answer("a", "b", "c")
    reader.rate("a", "b")
    reader.rounds()
    before = reader.state()
    wanted = request_replay(reader.engine, TOPIC, 0, None, 1.0)
    reader.rounds()
    found = read_replay(reader.engine, wanted)
    assert found["messages"] == 3
    assert found["finished_at"] is not None
    assert reader.state() == before
    assert len(before["trajectories"]) == 2
    assert reader.log.committed[TOPIC, GROUP] == {0: 3}


def test_what_a_restored_database_lacks_comes_back(reader: Reader) -> None:
    reader.answer("a", "b", "c")
    reader.rounds()
    with reader.engine.begin() as connection:
        connection.execute(sa.delete(generations).where(generations.c.inference_id != "a"))
    request_replay(reader.engine, TOPIC, 1, None, 1.0)
    reader.rounds()
    assert [row.inference_id for row in reader.state()["generations"]] == ["a", "b", "c"]


def test_from_a_time(reader: Reader) -> None:
    reader.answer("a", "b")
    time.sleep(0.02)
    since = time.time()
    reader.answer("c")
    reader.rounds()
    wanted = request_replay(reader.engine, TOPIC, None, since, 1.0)
    reader.rounds()
    assert read_replay(reader.engine, wanted)["messages"] == 1


def test_what_comes_meanwhile_is_read_once_and_not_counted(reader: Reader) -> None:
    reader.answer("a")
    reader.rounds()
    wanted = request_replay(reader.engine, TOPIC, 0, None, 1.0)
    reader.answer("b")
    reader.rounds()
    assert read_replay(reader.engine, wanted)["messages"] == 1
    assert [row.inference_id for row in reader.state()["generations"]] == ["a", "b"]


def test_one_from_beyond_the_end_skips_nothing(reader: Reader) -> None:
    reader.answer("a")
    reader.rounds()
    wanted = request_replay(reader.engine, TOPIC, 1000, None, 1.0)
    reader.rounds()
    reader.answer("b")
    reader.rounds()
    assert read_replay(reader.engine, wanted)["messages"] == 0
    assert len(reader.state()["generations"]) == 2


def test_one_that_is_interrupted_begins_again(reader: Reader) -> None:
    reader.answer("a", "b")
    reader.rounds()
    wanted = request_replay(reader.engine, TOPIC, 0, None, 1.0)
    reader.rounds(1)
    assert read_replay(reader.engine, wanted)["finished_at"] is None
    reader.loop.close()
    again = Reader(reader.engine, reader.log)
    again.rounds()
    assert read_replay(reader.engine, wanted)["messages"] == 2
    again.loop.close()


def test_one_after_the_other(reader: Reader) -> None:
    reader.answer("a", "b")
    reader.rounds()
    first, second = (request_replay(reader.engine, TOPIC, at, None, 1.0) for at in (0, 1))
    other = request_replay(reader.engine, "trajectories.v1", 0, None, 1.0)
    reader.rounds(6)
    assert [read_replay(reader.engine, one)["messages"] for one in (first, second)] == [2, 1]
    assert read_replay(reader.engine, other)["finished_at"] is None


def test_an_emptied_log_ends_it(reader: Reader) -> None:
    reader.answer("a", "b")
    reader.rounds()
    wanted = request_replay(reader.engine, TOPIC, 0, None, 1.0)
    reader.rounds(1)
    reader.log.stop()
    reader.log.start_empty()
    reader.answer("c")
    reader.rounds()
    assert read_replay(reader.engine, wanted)["finished_at"] is not None
    assert [row.inference_id for row in reader.state()["generations"]] == ["a", "b", "c"]


def test_it_is_not_finished_while_something_of_it_waits_in_memory(engine: Engine) -> None:
    """The learner's buffer: after a restart it goes on from a later place."""
    log = FakeLog()
    log.send(TOPIC, [("k", b"%d" % number) for number in range(3)])
    now = [0.0]
    consumer = ReplayingConsumer(log.consumer(TOPIC, group="g", offsets={0: 3}), TOPIC, engine, lambda: now[0])
    waiting = {0: 1}
    consumer.waiting = lambda: waiting
    wanted = request_replay(engine, TOPIC, 0, None, 1.0)

    def poll() -> int:
        now[0] += 2.0
        return len(consumer.poll(10, 0.0))

    assert [poll(), poll()] == [3, 0]
    assert read_replay(engine, wanted)["finished_at"] is None
    waiting.clear()
    poll()
    assert read_replay(engine, wanted)["messages"] == 3


def test_a_database_that_is_away_keeps_nobody_from_reading(reader: Reader) -> None:
    reader.answer("a")
    consumer = reader.follow(reader.log.consumer(TOPIC, group="g", offsets={}))
    with reader.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE replays RENAME TO elsewhere"))
    try:
        if reader.engine.dialect.name == "sqlite":  # PostgreSQL calls a missing table a mistake, not an outage
            assert len(consumer.poll(10, 0.0)) == 1
    finally:
        with reader.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE elsewhere RENAME TO replays"))
    reader.log.stop()
    with pytest.raises(LogUnavailable):
        consumer.poll(10, 0.0)
