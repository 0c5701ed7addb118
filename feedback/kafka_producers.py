"""Sending to the cluster, until every replica in sync has what was sent.

One producer for each topic: one of kafka-python 3.0 that is given a second topic may spin on a whole core, see
docs/adr/0015-one-kafka-producer-a-topic.md.
"""

import threading
from collections.abc import Sequence

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from feedback.kafka_clients import DELIVERY_TIMEOUT_MS, KafkaClients
from feedback.kafka_topics import KafkaTopics
from feedback.log_contract import MAX_MESSAGE_BYTES, MessageTooLarge


class KafkaProducers:
    """Opens a topic's producer when it is first sent to, and another after each failure. Thread-safe."""

    def __init__(self, clients: KafkaClients, topics: KafkaTopics) -> None:
        self._clients = clients
        self._topics = topics
        self._lock = threading.Lock()
        self._producers: dict[str, KafkaProducer] = {}
        self._identities: dict[str, str] = {}

    def send(self, topic: str, events: Sequence[tuple[str, bytes | None]]) -> list[tuple[int, int]]:
        """As `feedback.kafka_log.KafkaLog.send`."""
        require_sendable(topic, events)
        # A producer whose cluster was emptied under it holds sequence numbers nobody knows, and would wait in vain.
        identity = self._topics.identity(topic)
        if self._identities.get(topic, identity) != identity:
            self._drop(topic)
        self._identities[topic] = identity
        name = self._clients.prefixed(topic)
        try:
            producer = self._open(topic)
            futures = [producer.send(name, key=key.encode(), value=value) for key, value in events]
            producer.flush(timeout=DELIVERY_TIMEOUT_MS / 1000)
            records = [future.get(timeout=1) for future in futures]
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            self._drop(topic)
            raise MessageTooLarge(f"the broker refused a message for {topic} as too large") from error
        except (KafkaError, OSError) as error:
            self._drop(topic)
            raise self._clients.unavailable(f"send to {topic}", error) from error
        return [(record.partition, record.offset) for record in records]

    def close(self) -> None:
        for topic in list(self._producers):
            self._drop(topic)

    def _open(self, topic: str) -> KafkaProducer:
        with self._lock:
            if topic not in self._producers:
                self._producers[topic] = self._clients.open_producer()
            return self._producers[topic]

    def _drop(self, topic: str) -> None:
        with self._lock:
            producer = self._producers.pop(topic, None)
        if producer is not None:
            producer.close(timeout=0)


def require_sendable(topic: str, events: Sequence[tuple[str, bytes | None]]) -> None:
    """Raises MessageTooLarge where the log would not take one of `events` ((key, value) each)."""
    for key, value in events:
        size = len(value or b"")
        if len(key.encode()) + size + 1024 > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(f"a message for {topic} has {size} bytes, the limit is {MAX_MESSAGE_BYTES}")
