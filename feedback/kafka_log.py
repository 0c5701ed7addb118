"""The log between the parts, over the Kafka protocol. The only module that imports `kafka`.

Delivery is at least once: whoever consumes is idempotent by id. A log may be *emptied* (the embedded broker keeps
everything in memory and starts again with nothing); `KafkaLog.identity` then changes, consumers start again from
offset 0, and producers publish again what the other side has not made durable.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import OffsetSpec  # pyright: ignore[reportAttributeAccessIssue]: the checker's stubs are of 2.x
from kafka.errors import (
    KafkaConfigurationError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

# Every failure reaches the caller as LogUnavailable; the client's own reconnect messages would repeat it each 50 ms.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
TIMEOUT_MS = 5_000
DELIVERY_TIMEOUT_MS = 10_000
IDENTITY_CHECK_SECONDS = 1.0
MAX_COMPACTION_LAG_MS = 24 * 3600 * 1000
"""Longest that a cluster keeps what a tombstone was sent for, on a topic that goes on being written."""
FETCH_WAIT_MS = 100
"""Tansu 0.6 looks for new messages only at the ends of a waiting fetch: with the client's 500 a message waits 250."""

T = TypeVar("T")
Admin = Any
"""A KafkaAdminClient; untyped because the checker's stubs describe version 2."""


class LogUnavailable(Exception):
    """The broker did not answer, or refused. What was sent may or may not be there; sending it again is safe."""


class MessageTooLarge(Exception):
    """A message is larger than the log takes; sending it again cannot succeed."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message as it lies in the log."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes


class KafkaLog:
    """Topics, producer and consumers on one cluster. Topic names are given without the prefix. Thread-safe."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str,
        topic_prefix: str = "",
        security: Mapping[str, str] | None = None,
        replication_factor: int = 1,
        retention_ms: int = -1,
    ) -> None:
        """`replication_factor` and `retention_ms` (-1: for ever) are those of topics that are created here."""
        servers = [server.strip() for server in bootstrap_servers.split(",") if server.strip()]
        if not servers or not all(server.rpartition(":")[2].isdigit() for server in servers):
            raise ValueError(f"kafka.bootstrap_servers is {bootstrap_servers!r}; give host:port, separated by commas")
        self._servers = bootstrap_servers
        self._prefix = topic_prefix
        self._replication_factor = replication_factor
        # A cluster's own defaults would delete after seven days what a frozen learner has not read yet. Compaction
        # removes what was erased; every key but an erased one has its newest message as long as retention lasts.
        self._configs = {
            "max.message.bytes": str(MAX_MESSAGE_BYTES),
            "cleanup.policy": "compact" if retention_ms < 0 else "compact,delete",
            "max.compaction.lag.ms": str(MAX_COMPACTION_LAG_MS),
            "retention.ms": str(retention_ms),
            "retention.bytes": "-1",
        }
        self._client: dict[str, Any] = {
            "bootstrap_servers": servers,
            "client_id": client_id,
            "request_timeout_ms": TIMEOUT_MS,
            "bootstrap_timeout_ms": TIMEOUT_MS,
            "reconnect_backoff_max_ms": 1_000,
            **dict(security or {}),
        }
        self._lock = threading.RLock()
        self._admin: Admin | None = None
        # One for each topic: a producer of kafka-python 3.0 that is given a second topic may spin on a whole core.
        self._producers: dict[str, KafkaProducer] = {}
        self._partitions: dict[str, int] = {}
        self._identities: dict[str, str] = {}

    def ensure_topics(self, names: Iterable[str], partitions: int = 1) -> None:
        """Create the topics that do not exist. Raises LogUnavailable."""
        for name in names:
            self._partitions[name] = partitions
            if self._describe(name) is None:
                self._create(name)

    def send(self, topic: str, events: Sequence[tuple[str, bytes | None]]) -> list[tuple[int, int]]:
        """Append `events` ((key, value) each) and wait until all replicas in sync have them.

        No value is a tombstone: what was sent before with that key is to go. Returns (partition, offset) of each, in
        order. Raises LogUnavailable (some may have been appended) or MessageTooLarge (nothing was appended).
        """
        for key, value in events:
            size = len(value or b"")
            if len(key) + size + 1024 > MAX_MESSAGE_BYTES:
                raise MessageTooLarge(f"a message for {topic} has {size} bytes, the limit is {MAX_MESSAGE_BYTES}")
        # A producer whose cluster was emptied under it holds sequence numbers nobody knows, and would wait in vain.
        identity = self.identity(topic)
        if self._identities.get(topic, identity) != identity:
            self._drop_producer(topic)
        self._identities[topic] = identity
        try:
            producer = self._open_producer(topic)
            futures = [producer.send(self._prefix + topic, key=key.encode(), value=value) for key, value in events]
            producer.flush(timeout=DELIVERY_TIMEOUT_MS / 1000)
            records = [future.get(timeout=1) for future in futures]
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            self._drop_producer(topic)
            raise MessageTooLarge(f"the broker refused a message for {topic} as too large") from error
        except (KafkaError, OSError) as error:
            self._drop_producer(topic)
            raise self._unavailable(f"send to {topic}", error) from error
        return [(record.partition, record.offset) for record in records]

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset that the next message of each partition will get. Raises LogUnavailable."""
        name = self._prefix + topic
        partitions = {TopicPartition(name, number): OffsetSpec.LATEST for number in self.partitions(topic)}
        found = self._ask(f"read the end of {topic}", lambda admin: admin.list_partition_offsets(partitions))
        return self._high_watermarks(topic, {part: result.offset for part, result in found.items()})

    def _high_watermarks(self, topic: str, listed: dict[TopicPartition, int]) -> dict[int, int]:
        """The ends as fetching reports them.

        Tansu 0.6 lists, as the latest offset, the *first* of the last batch plus one; what a fetch reports is right.
        """
        ends = {part.partition: offset for part, offset in listed.items()}
        filled = {part: offset for part, offset in listed.items() if offset > 0}
        if not filled:
            return ends
        consumer = self.open_consumer(None)
        try:
            consumer.assign(list(filled))
            for part, offset in filled.items():
                consumer.seek(part, offset - 1)
            deadline = time.monotonic() + TIMEOUT_MS / 1000
            while any(consumer.highwater(part) is None for part in filled):
                if time.monotonic() > deadline:
                    raise LogUnavailable(f"the broker {self._servers} lists messages of {topic} but returns none")
                consumer.poll(timeout_ms=200, max_records=1)
            return ends | {part.partition: consumer.highwater(part) or 0 for part in filled}
        except (KafkaError, OSError) as error:
            raise self._unavailable(f"read the end of {topic}", error) from error
        finally:
            consumer.close(autocommit=False, timeout_ms=1_000)

    def cluster_id(self) -> str:
        """Raises LogUnavailable."""
        return str(self._ask("read the cluster id", lambda admin: admin.describe_cluster())["cluster_id"])

    def identity(self, topic: str) -> str:
        """Changes exactly when the topic was emptied: the cluster's id and the id the topic got when it was created.

        A topic that is missing is created. Raises LogUnavailable.
        """
        found = self._describe(topic) or self._create(topic)
        return f"{self.cluster_id()}/{found['topic_id']}"

    def partitions(self, topic: str) -> list[int]:
        """The topic's partition numbers; a missing topic is created. Raises LogUnavailable."""
        found = self._describe(topic) or self._create(topic)
        return sorted(part["partition_index"] for part in found["partitions"])

    def consumer(self, topic: str, *, group: str, offsets: Mapping[int, int] | None) -> "LogConsumer":
        """Read every partition of `topic`, without group membership: nobody is ever rebalanced away.

        `offsets` (partition → next offset; a partition not named starts at 0) or, where None, what `group` committed.
        Raises LogUnavailable.
        """
        return LogConsumer(self, topic, group, offsets)

    def close(self) -> None:
        with self._lock:
            for topic in list(self._producers):
                self._drop_producer(topic)
            self._drop_admin()

    # What LogConsumer needs of its log.

    def prefixed(self, topic: str) -> str:
        return self._prefix + topic

    def open_consumer(self, group: str | None) -> KafkaConsumer:
        try:
            self._require_reachable()
            return KafkaConsumer(
                **self._client,
                group_id=None if group is None else self._prefix + group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
                fetch_max_wait_ms=FETCH_WAIT_MS,
            )
        except (KafkaError, OSError) as error:
            raise self._unavailable("open a consumer", error) from error

    def _unavailable(self, action: str, error: Exception) -> LogUnavailable:
        return LogUnavailable(
            f"could not {action} at the Kafka broker {self._servers}: {error or type(error).__name__}. "
            "Is it running, and is kafka.bootstrap_servers right?"
        )

    def _ask(self, action: str, question: Callable[[Admin], T]) -> T:
        """Ask the admin client; once more over a fresh connection, as the old one may be to a broker that died."""
        with self._lock:
            for attempt in (1, 2):
                try:
                    return question(self._open_admin())
                except KafkaConfigurationError as error:
                    raise ValueError(f"kafka.security has a setting that does not work: {error}") from error
                except (KafkaError, OSError) as error:
                    self._drop_admin()
                    if attempt == 2 or isinstance(error, TopicAlreadyExistsError):
                        raise self._unavailable(action, error) from error
        raise AssertionError("unreachable")

    def _describe(self, topic: str) -> dict[str, Any] | None:
        name = self._prefix + topic
        found = self._ask(f"describe topic {topic}", lambda admin: admin.describe_topics([name]))[0]
        return found if found["error_code"] == 0 and found["partitions"] else None

    def _create(self, topic: str) -> dict[str, Any]:
        name = self._prefix + topic
        wanted = {
            "num_partitions": self._partitions.get(topic, 1),
            "replication_factor": self._replication_factor,
            "configs": self._configs,
        }

        def create(admin: Admin) -> None:
            try:
                admin.create_topics({name: wanted}, timeout_ms=TIMEOUT_MS, wait_for_metadata=True)
            except TopicAlreadyExistsError:
                admin.wait_for_topics([name], timeout_ms=TIMEOUT_MS)  # another process was faster

        self._ask(f"create topic {topic}", create)
        found = self._describe(topic)
        if found is None:
            raise LogUnavailable(f"topic {topic} was created at {self._servers} but does not appear")
        return found

    def _require_reachable(self) -> None:
        """Raise OSError at once where no server accepts connections: the client would look for one for seconds."""
        failure: OSError | None = None
        for server in self._client["bootstrap_servers"]:
            host, _, port = server.rpartition(":")
            try:
                socket.create_connection((host.rpartition("//")[2].strip("[]"), int(port)), timeout=2).close()
                return
            except OSError as error:
                failure = error
        raise failure or OSError("kafka.bootstrap_servers names no server")

    def _open_admin(self) -> Admin:
        if self._admin is None:
            self._require_reachable()
            self._admin = KafkaAdminClient(**self._client)
        return self._admin

    def _open_producer(self, topic: str) -> KafkaProducer:
        with self._lock:
            if topic not in self._producers:
                self._require_reachable()
                self._producers[topic] = KafkaProducer(
                    **self._client,
                    acks="all",
                    enable_idempotence=True,
                    delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                    max_block_ms=TIMEOUT_MS,
                    max_request_size=MAX_MESSAGE_BYTES,
                    allow_auto_create_topics=False,
                )
            return self._producers[topic]

    def _drop_producer(self, topic: str) -> None:
        with self._lock:
            producer = self._producers.pop(topic, None)
        if producer is not None:
            producer.close(timeout=0)

    def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


class LogConsumer:
    """Reads one topic. Committing is the caller's: after the effect of a record is durable, never before.

    Not thread-safe: one consumer belongs to one thread.
    """

    def __init__(self, log: KafkaLog, topic: str, group: str, offsets: Mapping[int, int] | None) -> None:
        self.topic = topic
        self.emptied = 0
        """How often the log was found emptied, and reading began again at offset 0."""
        self._log = log
        self._name = log.prefixed(topic)
        self._identity = log.identity(topic)
        self._checked = time.monotonic()
        self._consumer = log.open_consumer(group)
        self._assign(offsets)

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
        ends = self._log.end_offsets(self.topic)
        return {
            # Where there is none since, Kafka gives nothing and Tansu 0.6 the offset 0 without a time.
            part.partition: ends.get(part.partition, 0) if place is None or place.timestamp < 0 else place.offset
            for part, place in found.items()
        }

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1_000)

    def _assign(self, offsets: Mapping[int, int] | None) -> None:
        partitions = self._log.partitions(self.topic)
        self._consumer.assign([TopicPartition(self._name, number) for number in partitions])
        if offsets is not None:
            self.seek({number: offsets.get(number, 0) for number in partitions})

    def _follow(self) -> bool:
        """Start again from 0 where the log was emptied. Asked, because a broker need not refuse an old offset."""
        identity = self._log.identity(self.topic)
        self._checked = time.monotonic()
        if identity == self._identity:
            return False
        self._identity = identity
        self.emptied += 1
        self._assign({})
        return True
