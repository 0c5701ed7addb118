"""Where the topics of the cluster end."""

import time

from kafka.admin import OffsetSpec  # pyright: ignore[reportAttributeAccessIssue]: the checker's stubs are of 2.x
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from feedback.kafka_clients import TIMEOUT_MS, KafkaClients
from feedback.kafka_topics import KafkaTopics
from feedback.log_contract import LogUnavailable


def read_end_offsets(clients: KafkaClients, topics: KafkaTopics, topic: str) -> dict[int, int]:
    """Partition → the offset that its next message will get. Raises LogUnavailable."""
    name = clients.prefixed(topic)
    partitions = {TopicPartition(name, number): OffsetSpec.LATEST for number in topics.partitions(topic)}
    found = topics.ask(f"read the end of {topic}", lambda admin: admin.list_partition_offsets(partitions))
    return read_high_watermarks(clients, topic, {part: result.offset for part, result in found.items()})


def read_high_watermarks(clients: KafkaClients, topic: str, listed: dict[TopicPartition, int]) -> dict[int, int]:
    """The ends as fetching reports them. Raises LogUnavailable.

    Tansu 0.6 lists, as the latest offset, the *first* of the last batch plus one; what a fetch reports is right.
    """
    ends = {part.partition: offset for part, offset in listed.items()}
    filled = {part: offset for part, offset in listed.items() if offset > 0}
    if not filled:
        return ends
    consumer = clients.open_consumer(None)
    try:
        consumer.assign(list(filled))
        for part, offset in filled.items():
            consumer.seek(part, offset - 1)
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while any(consumer.highwater(part) is None for part in filled):
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"the broker {clients.bootstrap_servers} lists messages of {topic} but returns none"
                )
            consumer.poll(timeout_ms=200, max_records=1)
        return ends | {part.partition: consumer.highwater(part) or 0 for part in filled}
    except (KafkaError, OSError) as error:
        raise clients.unavailable(f"read the end of {topic}", error) from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1_000)
