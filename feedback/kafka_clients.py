"""How the clients of one Kafka cluster are configured, and what their failures are called."""

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from feedback.log_contract import MAX_MESSAGE_BYTES, LogUnavailable

# Every failure reaches the caller as LogUnavailable; the client's own reconnect messages would repeat it each 50 ms.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

TIMEOUT_MS = 5_000
DELIVERY_TIMEOUT_MS = 10_000
FETCH_WAIT_MS = 100
"""Tansu 0.6 looks for new messages only at the ends of a waiting fetch: with the client's 500 a message waits 250."""

Admin = Any
"""A KafkaAdminClient; untyped because the checker's stubs describe version 2."""


class KafkaClients:
    """Opens clients; who opened one closes it. Names are given without the prefix. Thread-safe."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str,
        prefix: str = "",
        security: Mapping[str, str] | None = None,
    ) -> None:
        """`prefix` stands before every topic and group of this service on the cluster; `security` are further settings
        of the client. Raises ValueError."""
        self.bootstrap_servers = bootstrap_servers
        self._prefix = prefix
        self._servers = parse_servers(bootstrap_servers)
        self._common: dict[str, Any] = {
            "bootstrap_servers": self._servers,
            "client_id": client_id,
            "request_timeout_ms": TIMEOUT_MS,
            "bootstrap_timeout_ms": TIMEOUT_MS,
            "reconnect_backoff_max_ms": 1_000,
            **dict(security or {}),
        }

    def prefixed(self, name: str) -> str:
        """A topic's or a group's name on the cluster."""
        return self._prefix + name

    def open_admin(self) -> Admin:
        """Raises KafkaError, OSError."""
        require_reachable(self._servers)
        return KafkaAdminClient(**self._common)

    def open_producer(self) -> KafkaProducer:
        """Raises KafkaError, OSError."""
        require_reachable(self._servers)
        return KafkaProducer(
            **self._common,
            acks="all",
            enable_idempotence=True,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=TIMEOUT_MS,
            max_request_size=MAX_MESSAGE_BYTES,
            allow_auto_create_topics=False,
        )

    def open_consumer(self, group: str | None) -> KafkaConsumer:
        """Raises LogUnavailable."""
        try:
            require_reachable(self._servers)
            return KafkaConsumer(
                **self._common,
                group_id=None if group is None else self.prefixed(group),
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
                fetch_max_wait_ms=FETCH_WAIT_MS,
            )
        except (KafkaError, OSError) as error:
            raise self.unavailable("open a consumer", error) from error

    def unavailable(self, action: str, error: Exception) -> LogUnavailable:
        """What a client's `error` while it was to do `action` means to who uses the log."""
        return LogUnavailable(
            f"could not {action} at the Kafka broker {self.bootstrap_servers}: {error or type(error).__name__}. "
            "Is it running, and is kafka.bootstrap_servers right?"
        )


def parse_servers(bootstrap_servers: str) -> list[str]:
    """Each ``host:port`` of a list with commas. Raises ValueError."""
    servers = [server.strip() for server in bootstrap_servers.split(",") if server.strip()]
    if not servers or not all(server.rpartition(":")[2].isdigit() for server in servers):
        raise ValueError(f"kafka.bootstrap_servers is {bootstrap_servers!r}; give host:port, separated by commas")
    return servers


def require_reachable(servers: Sequence[str]) -> None:
    """Raise OSError at once where none of `servers` accepts connections: a client would look for one for seconds."""
    failure: OSError | None = None
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.rpartition("//")[2].strip("[]"), int(port)), timeout=2).close()
            return
        except OSError as error:
            failure = error
    raise failure or OSError("kafka.bootstrap_servers names no server")
