"""Reading one topic, and going back to its start where it was emptied."""

import time
from collections.abc import Mapping

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from feedback.kafka_clients import TIMEOUT_MS, KafkaClients
from feedback.kafka_offsets import read_end_offsets
from feedback.kafka_topics import KafkaTopics
from feedback.log_contract import LogUnavailable, Record

IDENTITY_CHECK_SECONDS = 1.0


class LogConsumer:
    """Reads one topic. Committing is the caller's: after the effect of a record is durable, never before.

    Not thread-safe: one consumer belongs to one thread.
    """

    def __init__(
        self, clients: KafkaClients, topics: KafkaTopics, topic: str, group: str, offsets: Mapping[int, int] | None
    ) -> None:
        """`group` and `offsets` as in `feedback.kafka_log.KafkaLog.consumer`. Raises LogUnavailable."""
        self.topic = topic
        self.emptied = 0
        """How often the log was found emptied, and reading began again at offset 0."""
        self._clients = clients
        self._topics = topics
        self._name = clients.prefixed(topic)
        self._identity = topics.identity(topic)
        self._checked = time.monotonic()
        self._consumer = clients.open_consumer(group)
        try:
            self._assign(offsets)
        except LogUnavailable:
            self.close()
            raise

    @property
    def identity(self) -> str:
        """Of the log that the offsets of this consumer belong to; kept beside them in a checkpoint."""
        return self._identity

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """At most `max_records` records, waiting up to `timeout_s` for the first; tombstones are passed over.

        Raises LogUnavailable.
        """
        if time.monotonic() - self._checked >= IDENTITY_CHECK_SECONDS:
            self._follow()
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        except (KafkaError, OSError) as error:
            raise LogUnavailable(f"could not read {self.topic}: {error}") from error
        return [
            # Whatever lies in the log is handed on: what to do with a message that makes no sense is the caller's.
            Record(
                self.topic,
                found.partition,
                found.offset,
                None if found.key is None else found.key.decode(errors="replace"),
                found.value,
            )
            for batch in batches.values()
            for found in batch
            if found.value is not None
        ]

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Store partition → next offset for the group. On a log emptied meanwhile nothing is stored.

        Raises LogUnavailable.
        """
        if self._follow():
            return
        wanted = {TopicPartition(self._name, part): OffsetAndMetadata(at, "", -1) for part, at in offsets.items()}
        try:
            self._consumer.commit(wanted, timeout_ms=TIMEOUT_MS)
        except (KafkaError, OSError) as error:
            raise LogUnavailable(f"could not commit offsets of {self.topic}: {error}") from error

    def seek(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(self._name, partition), offset)

    def position(self) -> dict[int, int]:
        """Partition → offset of the record that `poll` returns next. Raises LogUnavailable."""
        try:
            found = {
                part.partition: self._consumer.position(part, timeout_ms=TIMEOUT_MS)
                for part in sorted(self._consumer.assignment())
            }
        except (KafkaError, OSError) as error:
            raise LogUnavailable(f"could not read the position in {self.topic}: {error}") from error
        return {partition: offset or 0 for partition, offset in found.items()}

    def offsets_at(self, moment: float) -> dict[int, int]:
        """Partition → offset of the first message since `moment` (Unix seconds), or of the next one to come.

        Raises LogUnavailable.
        """
        wanted = {part: max(0, int(moment * 1000)) for part in self._consumer.assignment()}
        try:
            found = self._consumer.offsets_for_times(wanted)
        except (KafkaError, OSError) as error:
            raise LogUnavailable(f"could not look for a time in {self.topic}: {error}") from error
        ends = read_end_offsets(self._clients, self._topics, self.topic)
        return {
            # Where there is none since, Kafka gives nothing and Tansu 0.6 the offset 0 without a time.
            part.partition: ends.get(part.partition, 0) if place is None or place.timestamp < 0 else place.offset
            for part, place in found.items()
        }

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1_000)

    def _assign(self, offsets: Mapping[int, int] | None) -> None:
        partitions = self._topics.partitions(self.topic)
        self._consumer.assign([TopicPartition(self._name, number) for number in partitions])
        if offsets is not None:
            self.seek({number: offsets.get(number, 0) for number in partitions})

    def _follow(self) -> bool:
        """Start again from 0 where the log was emptied. Asked, because a broker need not refuse an old offset."""
        identity = self._topics.identity(self.topic)
        self._checked = time.monotonic()
        if identity == self._identity:
            return False
        self._identity = identity
        self.emptied += 1
        self._assign({})
        return True
