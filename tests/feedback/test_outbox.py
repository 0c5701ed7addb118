"""The relay, on both databases: at least once, in order, and again when the log was emptied."""

import json
import zlib
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.assembler import Assembler
from feedback.dead_letters import CannotRetry, bury, list_dead_letters, retry, unretried
from feedback.inbox import Submission, store_feedback
from feedback.log_contract import LogUnavailable, MessageTooLarge, Record
from feedback.outbox import KEEP_PUBLISHED_SECONDS, OutboxRelay
from feedback.schemas import FeedbackIn, Trajectory
from feedback.settings import FeedbackSettings
from feedback.tables import outbox, trajectories
from tests.fakes.log import FakeLog
from tests.feedback.samples import as_record, make_generation


class Bench:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.log = FakeLog()
        self.trained: set[str] = set()
        self.now = 2000.0
        self.assembler = Assembler(engine, FeedbackSettings(), lambda: self.now)
        self.relay = self.new_relay()

    def new_relay(self) -> OutboxRelay:
        return OutboxRelay(self.engine, self.log, self.handled, lambda: self.now)

    def handled(self, ids: Sequence[str]) -> set[str]:
        return self.trained & set(ids)

    def rate(self, *names: str) -> None:
        self.assembler.store([as_record(make_generation(name, at=1990.0)) for name in names])
        submissions = [Submission(FeedbackIn(inference_id=name, value=1), 1.0, "anonymous") for name in names]
        with self.engine.begin() as connection:
            store_feedback(connection, submissions, self.now)
        self.assembler.join_new()

    def published(self, topic: str = "trajectories.v1") -> list[str | None]:
        return [record.key for record in self.log.records(topic)]

    def states(self) -> list[tuple[str, str]]:
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(outbox.c.topic, outbox.c.state).order_by(outbox.c.seq))
            return [(topic, state) for topic, state in rows]


@pytest.fixture
def bench(engine: Engine) -> Bench:
    return Bench(engine)


def test_what_was_committed_is_published_once_with_its_place(bench: Bench) -> None:
    bench.rate("a", "b")
    assert bench.relay.publish() == 4
    assert bench.relay.publish() == 0
    found = [Trajectory.model_validate_json(record.value) for record in bench.log.records("trajectories.v1")]
    assert sorted(t.inference_ids for t in found) == [("a",), ("b",)]
    said = [json.loads(record.value) for record in bench.log.records("feedback.v1")]
    assert [(one["inference_id"], one["metric_name"], one["value"]) for one in said] == [
        ("a", "reward", 1.0),
        ("b", "reward", 1.0),
    ]
    with bench.engine.connect() as connection:
        rows = list(connection.execute(sa.select(outbox).where(outbox.c.topic == "trajectories.v1")))
    assert sorted((row.partition, row.offset) for row in rows) == [(0, 0), (0, 1)]
    assert {row.log_identity for row in rows} == {bench.log.identity("trajectories.v1")}


def test_with_the_log_down_nothing_is_lost(bench: Bench) -> None:
    bench.rate("a")
    bench.log.stop()
    with pytest.raises(LogUnavailable):
        bench.relay.publish()
    bench.log.start_empty()
    assert bench.relay.publish() == 2
    assert len(bench.published()) == 1


def test_after_a_crash_between_sending_and_marking_it_is_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rate("a")
    sent = bench.log.send

    def crash(topic: str, events: Sequence[tuple[str, bytes]]) -> list[tuple[int, int]]:
        sent(topic, events)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.log, "send", crash)
    with pytest.raises(KeyboardInterrupt):
        bench.relay.publish()
    monkeypatch.undo()
    bench.new_relay().publish()
    assert len(set(bench.published())) == 1


def test_an_emptied_log_gets_every_trajectory_not_yet_trained_on_again(bench: Bench) -> None:
    bench.rate("a", "b", "c")
    bench.relay.publish()
    assert bench.relay.refill() == 0
    first, *rest = bench.published()
    assert first is not None
    bench.trained = {first}
    bench.log.stop()
    bench.log.start_empty()
    assert bench.relay.refill() == 2
    assert bench.relay.publish() == 2
    assert sorted(map(str, bench.published())) == sorted(map(str, rest))
    assert bench.relay.republished == 2
    assert bench.relay.refill() == 0


def test_a_relay_that_starts_after_the_log_was_emptied_notices(bench: Bench) -> None:
    bench.rate("a")
    bench.relay.publish()
    bench.log.stop()
    bench.log.start_empty()
    relay = bench.new_relay()
    assert relay.refill() == 1
    relay.publish()
    assert len(bench.published()) == 1


def test_what_was_published_to_a_log_that_is_emptied_in_that_moment_is_published_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rate("a")
    sent = bench.log.send

    def emptied(topic: str, events: Sequence[tuple[str, bytes]]) -> list[tuple[int, int]]:
        placed = sent(topic, events)
        bench.log.start_empty()
        return placed

    bench.relay.refill()
    monkeypatch.setattr(bench.log, "send", emptied)
    bench.relay.publish()
    monkeypatch.undo()
    assert bench.relay.refill() == 1
    bench.relay.publish()
    assert len(bench.published()) == 1


def test_a_message_that_the_log_refuses_does_not_stop_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.rate("a", "b", "c")
    with bench.engine.connect() as connection:
        keys = list(connection.execute(sa.select(trajectories.c.trajectory_id)).scalars())
    sent = bench.log.send

    def refuse(topic: str, events: Sequence[tuple[str, bytes]]) -> list[tuple[int, int]]:
        if any(key == keys[1] for key, _ in events):
            raise MessageTooLarge("too large")
        return sent(topic, events)

    monkeypatch.setattr(bench.log, "send", refuse)
    assert bench.relay.publish() == 5
    assert sorted(map(str, bench.published())) == sorted([keys[0], keys[2]])
    assert bench.relay.publish() == 0
    assert [state for topic, state in bench.states() if topic == "trajectories.v1"].count("refused") == 1


def test_a_record_that_was_erased_does_not_stop_the_others(bench: Bench) -> None:
    bench.rate("a", "b")
    with bench.engine.begin() as connection:
        erased = connection.execute(sa.select(trajectories.c.trajectory_id).limit(1)).scalar_one()
        connection.execute(sa.delete(trajectories).where(trajectories.c.trajectory_id == erased))
    assert bench.relay.publish() == 3
    assert len(bench.published()) == 1
    assert bench.relay.publish() == 0


def test_published_feedback_events_are_forgotten_after_a_while_and_trajectories_are_not(bench: Bench) -> None:
    bench.rate("a")
    bench.relay.publish()
    bench.relay.prune()
    assert len(bench.states()) == 2
    bench.now += KEEP_PUBLISHED_SECONDS + 1
    bench.relay.prune()
    assert bench.states() == [("trajectories.v1", "published")]


def test_a_dead_letter_goes_to_its_topic_and_is_put_back_once(bench: Bench) -> None:
    bench.assembler.store([Record("generations.v1", 0, 5, "k", b"{}")])
    bench.relay.publish()
    (letter,) = list_dead_letters(bench.engine)
    assert (letter["topic"], letter["offset"], letter["replayed_at"]) == ("generations.v1", 5, None)
    assert "inference_id" in letter["reason"]
    assert [record.value for record in bench.log.records("generations.v1.dlq")] == [b"{}"]
    name = letter["dead_letter_id"]
    assert unretried(bench.engine) == [name]
    assert retry(bench.engine, [name, name]) == [name]
    bench.relay.publish()
    assert retry(bench.engine, [name]) == []
    bench.relay.publish()
    assert [(record.key, record.value) for record in bench.log.records("generations.v1")] == [("k", b"{}")]
    assert retry(bench.engine, [name], again=True) == [name]
    bench.relay.publish()
    assert [(record.key, record.value) for record in bench.log.records("generations.v1")] == [("k", b"{}")] * 2
    assert list_dead_letters(bench.engine) == unretried(bench.engine) == []
    assert len(list_dead_letters(bench.engine, replayed=True)) == 1
    with pytest.raises(CannotRetry, match="dl_none"):
        retry(bench.engine, ["dl_none"])


def test_of_several_dead_letters_none_is_put_back_where_one_does_not_exist(bench: Bench) -> None:
    bench.assembler.store([Record("generations.v1", 0, 5, "k", b"{}")])
    (name,) = unretried(bench.engine)
    with pytest.raises(CannotRetry):
        retry(bench.engine, [name, "dl_none"])
    assert unretried(bench.engine) == [name]


def test_with_the_log_down_a_dead_letter_is_put_back_when_it_is_up(bench: Bench) -> None:
    bench.assembler.store([Record("generations.v1", 0, 5, None, b"{}")])
    (name,) = unretried(bench.engine)
    retry(bench.engine, [name])
    bench.log.stop()
    with pytest.raises(LogUnavailable):
        bench.relay.publish()
    bench.log.start_empty()
    bench.relay.publish()
    assert [(record.key, record.value) for record in bench.log.records("generations.v1")] == [(name, b"{}")]


def test_an_emptied_log_does_not_get_a_trajectory_that_was_put_back_again(bench: Bench) -> None:
    """It would be buried a second time, under another id."""
    with bench.engine.begin() as connection:
        bury(connection, Record("trajectories.v1", 0, 7, "k", b"{}"), "not a trajectory", 1.0)
    retry(bench.engine, unretried(bench.engine))
    bench.relay.publish()
    assert bench.published() == ["k"]
    bench.log.stop()
    bench.log.start_empty()
    assert bench.new_relay().refill() == 0


def test_the_event_in_the_record_is_the_event_on_the_log(bench: Bench) -> None:
    bench.rate("a")
    bench.relay.publish()
    with bench.engine.connect() as connection:
        stored = connection.execute(sa.select(trajectories.c.event)).scalar_one()
    assert zlib.decompress(stored) == bench.log.records("trajectories.v1")[0].value
