"""The log between the parts, over the Kafka protocol: topics, producers and consumers of one cluster as one thing.

Delivery is at least once: whoever consumes is idempotent by id. A log may be *emptied* (the embedded broker keeps
everything in memory and starts again with nothing); `KafkaLog.identity` then changes, consumers start again from
offset 0, and producers publish again what the other side has not made durable.
"""

from collections.abc import Iterable, Mapping, Sequence

from feedback.kafka_clients import KafkaClients
from feedback.kafka_consumer import LogConsumer
from feedback.kafka_offsets import read_end_offsets
from feedback.kafka_producers import KafkaProducers
from feedback.kafka_topics import KafkaTopics


class KafkaLog:
    """Topics, producers and consumers on one cluster. Topic names are given without the prefix. Thread-safe."""

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
        """`replication_factor` and `retention_ms` (-1: for ever) are those of topics that are created here.

        Raises ValueError where `bootstrap_servers` is no list of ``host:port``.
        """
        self._clients = KafkaClients(bootstrap_servers, client_id=client_id, prefix=topic_prefix, security=security)
        self._topics = KafkaTopics(self._clients, replication_factor=replication_factor, retention_ms=retention_ms)
        self._producers = KafkaProducers(self._clients, self._topics)

    def ensure_topics(self, names: Iterable[str], partitions: int = 1) -> None:
        """Create the topics that do not exist. Raises LogUnavailable."""
        self._topics.ensure(names, partitions)

    def send(self, topic: str, events: Sequence[tuple[str, bytes | None]]) -> list[tuple[int, int]]:
        """Append `events` ((key, value) each) and wait until all replicas in sync have them.

        No value is a tombstone: what was sent before with that key is to go. Returns (partition, offset) of each, in
        order. Raises LogUnavailable (some may have been appended) or MessageTooLarge (of a batch that the limit lets
        through and the broker does not, the others may have been).
        """
        return self._producers.send(topic, events)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset that the next message of each partition will get. Raises LogUnavailable."""
        return read_end_offsets(self._clients, self._topics, topic)

    def cluster_id(self) -> str:
        """Raises LogUnavailable."""
        return self._topics.cluster_id()

    def identity(self, topic: str) -> str:
        """Changes exactly when the topic was emptied. A topic that is missing is created. Raises LogUnavailable."""
        return self._topics.identity(topic)

    def consumer(self, topic: str, *, group: str, offsets: Mapping[int, int] | None) -> LogConsumer:
        """Read every partition of `topic`, without group membership: nobody is ever rebalanced away.

        `offsets` (partition → next offset; a partition not named starts at 0) or, where None, what `group` committed.
        Raises LogUnavailable.
        """
        return LogConsumer(self._clients, self._topics, topic, group, offsets)

    def close(self) -> None:
        self._producers.close()
        self._topics.close()
