"""The topics of the cluster: created where they are missing, and known by their identity.

A topic that was emptied and made again has its old name and another identity, see
docs/adr/0010-emptied-logs-are-told-by-identity.md.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kafka.errors import KafkaConfigurationError, KafkaError, TopicAlreadyExistsError

from feedback.kafka_clients import TIMEOUT_MS, Admin, KafkaClients
from feedback.log_contract import MAX_MESSAGE_BYTES, LogUnavailable

MAX_COMPACTION_LAG_MS = 24 * 3600 * 1000
"""Longest that a cluster keeps what a tombstone was sent for, on a topic that goes on being written."""

T = TypeVar("T")


class KafkaTopics:
    """Asks and creates over one admin client. Topic names are given without the prefix. Thread-safe."""

    def __init__(self, clients: KafkaClients, *, replication_factor: int, retention_ms: int) -> None:
        """`replication_factor` and `retention_ms` (-1: for ever) are those of topics that are created here."""
        self._clients = clients
        self._replication_factor = replication_factor
        self._configs = make_configs(retention_ms)
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._partitions: dict[str, int] = {}

    def ensure(self, names: Iterable[str], partitions: int) -> None:
        """Create the topics that do not exist. Raises LogUnavailable."""
        for name in names:
            self._partitions[name] = partitions
            if self._describe(name) is None:
                self._create(name)

    def cluster_id(self) -> str:
        """Raises LogUnavailable."""
        return str(self.ask("read the cluster id", lambda admin: admin.describe_cluster())["cluster_id"])

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

    def ask(self, action: str, question: Callable[[Admin], T]) -> T:
        """Ask the admin client; once more over a fresh connection, as the old one may be to a broker that died.

        Raises LogUnavailable; ValueError where the client cannot be configured so.
        """
        with self._lock:
            for attempt in (1, 2):
                try:
                    return question(self._open_admin())
                except KafkaConfigurationError as error:
                    raise ValueError(f"kafka.security has a setting that does not work: {error}") from error
                except (KafkaError, OSError) as error:
                    self._drop_admin()
                    if attempt == 2 or isinstance(error, TopicAlreadyExistsError):
                        raise self._clients.unavailable(action, error) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        with self._lock:
            self._drop_admin()

    def _describe(self, topic: str) -> dict[str, Any] | None:
        name = self._clients.prefixed(topic)
        found = self.ask(f"describe topic {topic}", lambda admin: admin.describe_topics([name]))[0]
        return found if found["error_code"] == 0 and found["partitions"] else None

    def _create(self, topic: str) -> dict[str, Any]:
        name = self._clients.prefixed(topic)
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

        self.ask(f"create topic {topic}", create)
        found = self._describe(topic)
        if found is None:
            raise LogUnavailable(f"topic {topic} was created at {self._clients.bootstrap_servers} but does not appear")
        return found

    def _open_admin(self) -> Admin:
        if self._admin is None:
            self._admin = self._clients.open_admin()
        return self._admin

    def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def make_configs(retention_ms: int) -> dict[str, str]:
    """Of a new topic. A cluster's own defaults would delete after seven days what a frozen learner has not read yet.

    Compaction removes what was erased; every key but an erased one has its newest message as long as retention lasts.
    """
    return {
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "cleanup.policy": "compact" if retention_ms < 0 else "compact,delete",
        "max.compaction.lag.ms": str(MAX_COMPACTION_LAG_MS),
        "retention.ms": str(retention_ms),
        "retention.bytes": "-1",
    }
