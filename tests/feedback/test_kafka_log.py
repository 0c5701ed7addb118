"""What every log must do, checked on the real broker and on the fake that unit tests use."""

import time
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from feedback.kafka_log import KafkaLog
from feedback.log_contract import MAX_MESSAGE_BYTES, LogUnavailable, MessageTooLarge, Record
from feedback.settings import KafkaSettings
from tests.fakes.log import FakeLog
from tests.feedback.brokers import Broker, free_port


class Rig(Protocol):
    """A log and the power to empty it, as `kill -9` and a restart of the embedded broker do, or to stop it."""

    log: KafkaLog | FakeLog

    def stop(self) -> None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...


class KafkaRig:
    def __init__(self) -> None:
        self.broker = Broker()
        self.broker.start()
        self.log = KafkaLog(self.broker.bootstrap_servers, client_id="test", topic_prefix="t.")

    def stop(self) -> None:
        self.broker.kill()

    def start(self) -> None:
        self.broker.start()

    def close(self) -> None:
        self.log.close()
        self.broker.kill()


class FakeRig:
    def __init__(self) -> None:
        self.log = FakeLog()

    def stop(self) -> None:
        self.log.stop()

    def start(self) -> None:
        self.log.start_empty()

    def close(self) -> None:
        self.log.close()


@pytest.fixture(params=[FakeRig, KafkaRig])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = request.param()
    yield made
    made.close()


def read(consumer: object, count: int, seconds: float = 15.0) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll(100, 0.2)  # type: ignore[attr-defined]
    return found


def test_what_is_sent_is_read_in_order(rig: Rig) -> None:
    placed = rig.log.send("x", [("a", b"1"), ("b", b"2"), ("a", b"3")])
    assert placed == [(0, 0), (0, 1), (0, 2)]
    assert rig.log.end_offsets("x") == {0: 3}
    consumer = rig.log.consumer("x", group="g", offsets=None)
    found = read(consumer, 3)
    assert [(r.topic, r.partition, r.offset, r.key, r.value) for r in found] == [
        ("x", 0, 0, "a", b"1"),
        ("x", 0, 1, "b", b"2"),
        ("x", 0, 2, "a", b"3"),
    ]
    assert consumer.position() == {0: 3}
    consumer.close()


def test_a_tombstone_has_its_place_and_is_passed_over_by_who_reads(rig: Rig) -> None:
    assert rig.log.send("x", [("a", b"1"), ("a", None), ("b", b""), ("c", b"2")]) == [(0, n) for n in range(4)]
    consumer = rig.log.consumer("x", group="g", offsets=None)
    assert [(r.key, r.value) for r in read(consumer, 3)] == [("a", b"1"), ("b", b""), ("c", b"2")]
    assert consumer.position() == {0: 4}
    consumer.close()


def test_where_a_time_lies(rig: Rig) -> None:
    consumer = rig.log.consumer("x", group="g", offsets=None)
    assert consumer.offsets_at(time.time()) == {0: 0}
    rig.log.send("x", [("k", b"1"), ("k", b"2")])
    time.sleep(0.05)
    between = time.time()
    time.sleep(0.05)
    rig.log.send("x", [("k", b"3")])
    time.sleep(0.05)
    assert consumer.offsets_at(0.0) == {0: 0}
    assert consumer.offsets_at(between) == {0: 2}
    assert consumer.offsets_at(time.time()) == {0: 3}
    consumer.close()


def test_poll_takes_no_more_than_asked(rig: Rig) -> None:
    rig.log.send("x", [("k", b"%d" % i) for i in range(5)])
    consumer = rig.log.consumer("x", group="g", offsets={})
    assert len(consumer.poll(2, 5.0)) == 2
    assert consumer.position() == {0: 2}
    consumer.close()


def test_reading_goes_on_after_what_was_committed_and_only_that(rig: Rig) -> None:
    rig.log.send("x", [("k", b"%d" % i) for i in range(4)])
    first = rig.log.consumer("x", group="g", offsets=None)
    assert len(read(first, 4)) == 4
    first.commit({0: 2})
    first.close()
    second = rig.log.consumer("x", group="g", offsets=None)
    assert [r.offset for r in read(second, 2)] == [2, 3]
    second.close()
    other = rig.log.consumer("x", group="other", offsets=None)
    assert [r.offset for r in read(other, 4)] == [0, 1, 2, 3]
    other.close()


def test_offsets_of_the_caller_win_over_committed_ones(rig: Rig) -> None:
    rig.log.send("x", [("k", b"%d" % i) for i in range(4)])
    consumer = rig.log.consumer("x", group="g", offsets={0: 3})
    assert [r.offset for r in read(consumer, 1)] == [3]
    consumer.seek({0: 1})
    assert [r.offset for r in read(consumer, 3)] == [1, 2, 3]
    consumer.close()


def test_two_consumers_of_a_group_both_read_everything_as_none_is_rebalanced_away(rig: Rig) -> None:
    one, two = (rig.log.consumer("x", group="g", offsets=None) for _ in range(2))
    rig.log.send("x", [("k", b"1")])
    assert len(read(one, 1)) == 1
    assert len(read(two, 1)) == 1
    one.close()
    two.close()


def test_several_partitions(rig: Rig) -> None:
    rig.log.ensure_topics(["x"], partitions=3)
    rig.log.ensure_topics(["x"], partitions=3)
    rig.log.send("x", [(f"k{i}", b"v") for i in range(30)])
    assert set(rig.log.end_offsets("x")) == {0, 1, 2}
    assert sum(rig.log.end_offsets("x").values()) == 30
    consumer = rig.log.consumer("x", group="g", offsets=None)
    assert len(read(consumer, 30)) == 30
    consumer.close()


def test_an_emptied_log_changes_its_identity_and_is_read_again_from_the_start(rig: Rig) -> None:
    rig.log.send("x", [("k", b"old%d" % i) for i in range(5)])
    before, cluster = rig.log.identity("x"), rig.log.cluster_id()
    consumer = rig.log.consumer("x", group="g", offsets=None)
    assert len(read(consumer, 5)) == 5
    consumer.commit({0: 5})
    rig.stop()
    rig.start()
    # More than before: an offset that is in range again must not hide what lies before it.
    assert rig.log.send("x", [("k", b"new%d" % i) for i in range(7)])[0] == (0, 0)
    assert (rig.log.identity("x"), rig.log.cluster_id()) != (before, cluster)
    found: set[bytes] = set()
    deadline = time.monotonic() + 10
    while len(found) < 7 and time.monotonic() < deadline:
        found |= {r.value for r in consumer.poll(100, 0.2)}
    assert found == {b"new%d" % i for i in range(7)}
    assert consumer.emptied == 1
    assert consumer.identity == rig.log.identity("x") != before
    consumer.close()


def test_offsets_of_a_log_that_was_emptied_are_not_committed_to_the_new_one(rig: Rig) -> None:
    rig.log.send("x", [("k", b"old%d" % i) for i in range(5)])
    consumer = rig.log.consumer("x", group="g", offsets=None)
    assert len(read(consumer, 5)) == 5
    rig.stop()
    rig.start()
    rig.log.send("x", [("k", b"new%d" % i) for i in range(7)])
    consumer.commit({0: 5})
    consumer.close()
    again = rig.log.consumer("x", group="g", offsets=None)
    assert [r.offset for r in read(again, 7)] == list(range(7))
    again.close()


def test_a_log_that_is_down_says_so_everywhere_and_works_again_when_it_is_back(rig: Rig) -> None:
    rig.log.send("x", [("k", b"1")])
    consumer = rig.log.consumer("x", group="g", offsets=None)
    assert len(read(consumer, 1)) == 1
    rig.stop()
    for question in (
        lambda: rig.log.send("x", [("k", b"2")]),
        lambda: rig.log.end_offsets("x"),
        lambda: rig.log.cluster_id(),
        lambda: rig.log.ensure_topics(["y"]),
        lambda: rig.log.consumer("x", group="g", offsets=None),
        lambda: consumer.commit({0: 1}),
    ):
        with pytest.raises(LogUnavailable):
            question()
    with pytest.raises(LogUnavailable):
        read(consumer, 1, seconds=10)
    rig.start()
    rig.log.send("x", [("k", b"3")])
    assert read(consumer, 1)[-1].value == b"3"
    consumer.close()


def test_a_message_beyond_the_limit_is_refused_before_anything_is_sent(rig: Rig) -> None:
    with pytest.raises(MessageTooLarge):
        rig.log.send("x", [("k", b"small"), ("k", bytes(17 * 1024 * 1024))])
    with pytest.raises(MessageTooLarge):  # a character of the key may take four bytes
        rig.log.send("x", [("\N{GRINNING FACE}" * 200_000, bytes(MAX_MESSAGE_BYTES - 400_000))])
    assert rig.log.end_offsets("x") == {0: 0}


def test_a_large_message_goes_through(rig: Rig) -> None:
    rig.log.send("x", [("k", bytes(3 * 1024 * 1024))])
    consumer = rig.log.consumer("x", group="g", offsets=None)
    assert len(read(consumer, 1)[0].value) == 3 * 1024 * 1024
    consumer.close()


def test_an_absent_broker_gives_one_message_with_the_remedy() -> None:
    log = KafkaLog(f"127.0.0.1:{free_port()}", client_id="test")
    with pytest.raises(LogUnavailable, match=r"bootstrap_servers"):
        log.cluster_id()
    log.close()


class FakeAdmin:
    """Knows no topic until one is created, and remembers how."""

    def __init__(self) -> None:
        self.created: dict[str, dict[str, Any]] = {}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"error_code": 0 if name in self.created else 3, "partitions": [0]} for name in names]

    def create_topics(self, topics: dict[str, dict[str, Any]], **_: Any) -> None:
        self.created |= topics

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("settings", "retention", "policy"),
    [({}, "-1", "compact"), ({"retention_days": 1.5}, "129600000", "compact,delete")],
)
def test_a_cluster_s_defaults_delete_nothing_that_is_unread(
    settings: dict[str, Any], retention: str, policy: str
) -> None:
    log = KafkaLog("127.0.0.1:1", client_id="test", retention_ms=KafkaSettings(**settings).retention_ms)
    log._topics._admin = admin = FakeAdmin()
    log.ensure_topics(["x"])
    configs = admin.created["x"]["configs"]
    assert configs["retention.ms"] == retention
    assert (configs["retention.bytes"], configs["cleanup.policy"]) == ("-1", policy)
    # What a tombstone was sent for is gone after a day at the latest.
    assert configs["max.compaction.lag.ms"] == "86400000"
    log.close()
