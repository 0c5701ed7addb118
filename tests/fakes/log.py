"""A log in memory that behaves as `feedback.kafka_log.KafkaLog` does; both pass tests/feedback/test_kafka_log.py."""

import itertools
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence

from feedback.log_contract import MAX_MESSAGE_BYTES, LogUnavailable, MessageTooLarge, Record

_clusters = itertools.count()


class FakeLog:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted: dict[str, int] = {}
        self.start_empty()

    def stop(self) -> None:
        self._up = False

    def start_empty(self) -> None:
        self._up = True
        self._cluster = f"fake-{next(_clusters)}"
        self._topics: dict[str, list[list[Record]]] = {}
        self._times: dict[tuple[str, int], list[float]] = {}
        self.committed: dict[tuple[str, str], dict[int, int]] = {}

    def ensure_topics(self, names: Iterable[str], partitions: int = 1) -> None:
        for name in names:
            self._wanted[name] = partitions
            self._topic(name)

    def send(self, topic: str, events: Sequence[tuple[str, bytes | None]]) -> list[tuple[int, int]]:
        parts = self._topic(topic)
        for key, value in events:
            if len(key.encode()) + len(value or b"") + 1024 > MAX_MESSAGE_BYTES:
                raise MessageTooLarge(f"a message for {topic} has {len(value or b'')} bytes")
        placed: list[tuple[int, int]] = []
        with self._changed:
            for key, value in events:
                number = zlib.crc32(key.encode()) % len(parts)
                parts[number].append(Record(topic, number, len(parts[number]), key, value))  # type: ignore[arg-type]
                self._times.setdefault((topic, number), []).append(time.time())
                placed.append((number, len(parts[number]) - 1))
            self._changed.notify_all()
        return placed

    def end_offsets(self, topic: str) -> dict[int, int]:
        return {number: len(records) for number, records in enumerate(self._topic(topic))}

    def cluster_id(self) -> str:
        self._require_up()
        return self._cluster

    def identity(self, topic: str) -> str:
        self._topic(topic)
        return f"{self._cluster}/{topic}"

    def consumer(self, topic: str, *, group: str, offsets: Mapping[int, int] | None) -> "FakeConsumer":
        return FakeConsumer(self, topic, group, offsets)

    def close(self) -> None:
        pass

    def records(self, topic: str) -> list[Record]:
        return [record for part in self._topic(topic) for record in part]

    def _require_up(self) -> None:
        if not self._up:
            raise LogUnavailable("the fake log is stopped")

    def _topic(self, name: str) -> list[list[Record]]:
        self._require_up()
        return self._topics.setdefault(name, [[] for _ in range(self._wanted.get(name, 1))])


class FakeConsumer:
    def __init__(self, log: FakeLog, topic: str, group: str, offsets: Mapping[int, int] | None) -> None:
        self.topic = topic
        self.emptied = 0
        self.identity = log.identity(topic)
        self._log = log
        self._group = group
        start = log.committed.get((topic, group), {}) if offsets is None else offsets
        self._position = {number: start.get(number, 0) for number in log.end_offsets(topic)}

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        self._follow()
        with self._log._changed:
            while True:
                found = self._take(max_records)
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                self._log._changed.wait(left)

    def commit(self, offsets: Mapping[int, int]) -> None:
        if not self._follow():
            self._log.committed.setdefault((self.topic, self._group), {}).update(offsets)

    def seek(self, offsets: Mapping[int, int]) -> None:
        self._position.update(offsets)

    def position(self) -> dict[int, int]:
        return dict(self._position)

    def offsets_at(self, moment: float) -> dict[int, int]:
        times = {number: self._log._times.get((self.topic, number), []) for number in self._position}
        return {number: sum(at < moment for at in sent) for number, sent in times.items()}

    def close(self) -> None:
        pass

    def _take(self, max_records: int) -> list[Record]:
        found: list[Record] = []
        for number, records in enumerate(self._log._topic(self.topic)):
            at = self._position[number]
            taken = records[at : at + max_records - len(found)]
            found += [record for record in taken if record.value is not None]
            self._position[number] = at + len(taken)
        return found

    def _follow(self) -> bool:
        identity = self._log.identity(self.topic)
        if identity == self.identity:
            return False
        self.identity = identity
        self.emptied += 1
        self._position = dict.fromkeys(self._log.end_offsets(self.topic), 0)
        return True
