"""From SQL to the log: whatever was committed is published, in order, at least once.

A row says only *which* event is to be published; the event is made from the record it names. So an emptied log can be
filled again from the record, and nothing is stored twice.
"""

import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Row

from feedback.database import chunked, read_only
from feedback.dead_letters import DLQ_SUFFIX
from feedback.kafka_log import MessageTooLarge
from feedback.schemas import FEEDBACK_TOPIC, TRAJECTORIES_TOPIC
from feedback.tables import dead_letters, feedback, outbox, trajectories

logger = logging.getLogger(__name__)

BATCH_ROWS = 500
BATCH_BYTES = 4 * 1024 * 1024
KEEP_PUBLISHED_SECONDS = 3600.0

Handled = Callable[[Sequence[str]], set[str]]
"""Which of these trajectory ids the learner is done with (trained on, or dropped)."""


class Log(Protocol):
    """What the relay needs of the log."""

    def send(self, topic: str, events: Sequence[tuple[str, bytes]]) -> list[tuple[int, int]]: ...
    def identity(self, topic: str) -> str: ...


def enqueue(connection: Connection, topic: str, keys: Iterable[str], now: float) -> None:
    """Have the events of these records published once the caller's transaction commits."""
    rows = [{"topic": topic, "key": key, "created_at": now, "state": "waiting"} for key in keys]
    if rows:
        connection.execute(sa.insert(outbox), rows)


class OutboxRelay:
    """Publishes the outbox. One relay runs at a time; two would publish twice, which consumers bear."""

    def __init__(self, engine: Engine, log: Log, handled: Handled, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._log = log
        self._handled = handled
        self._clock = clock
        self._identity: str | None = None
        self.republished = 0
        """Trajectories published again because the log was emptied."""

    def publish(self) -> int:
        """Publish what waits; returns how many events. Raises LogUnavailable; nothing is lost then."""
        with read_only(self._engine).connect() as connection:
            query = sa.select(outbox).where(outbox.c.state == "waiting").order_by(outbox.c.seq).limit(BATCH_ROWS)
            waiting = connection.execute(query).all()
            events = _events(connection, waiting)
        gone = [row.seq for row in waiting if (row.topic, row.key) not in events]
        if gone:
            # Its record was erased meanwhile: there is nothing left to say.
            with self._engine.begin() as connection:
                _set_state(connection, gone, "erased")
            waiting = [row for row in waiting if row.seq not in gone]
        count = 0
        for topic in dict.fromkeys(row.topic for row in waiting):
            rows = [row for row in waiting if row.topic == topic]
            for batch in _batches(rows, events):
                count += self._send(topic, batch, events)
        return count

    def refill(self) -> int:
        """If the log was emptied, have every trajectory that the learner is not done with published again.

        Returns how many. Cheap when nothing changed. Raises LogUnavailable.
        """
        identity = self._log.identity(TRAJECTORIES_TOPIC)
        if identity == self._identity:
            return 0
        count, after = 0, -1
        while rows := self._published_elsewhere(identity, after):
            after = rows[-1][0]
            done = self._handled([key for _, key in rows])
            again = [seq for seq, key in rows if key not in done]
            with self._engine.begin() as connection:
                _set_state(connection, [seq for seq, key in rows if key in done], "done")
                _set_state(connection, again, "waiting")
            count += len(again)
        if count:
            logger.warning("the log was emptied: %d trajectories not yet trained on are published again", count)
        self._identity = identity
        self.republished += count
        return count

    def prune(self) -> None:
        """Forget published rows that no emptied log could ask for again: the record itself stays."""
        old = self._clock() - KEEP_PUBLISHED_SECONDS
        for topic in (FEEDBACK_TOPIC,):
            gone = sa.delete(outbox).where(
                outbox.c.topic == topic, outbox.c.state == "published", outbox.c.published_at < old
            )
            with self._engine.begin() as connection:
                connection.execute(gone)

    def _published_elsewhere(self, identity: str, after: int) -> list[tuple[int, str]]:
        query = sa.select(outbox.c.seq, outbox.c.key).where(
            outbox.c.topic == TRAJECTORIES_TOPIC,
            outbox.c.state == "published",
            outbox.c.log_identity != identity,
            outbox.c.seq > after,
        )
        with read_only(self._engine).connect() as connection:
            found = connection.execute(query.order_by(outbox.c.seq).limit(BATCH_ROWS))
            return [(row.seq, row.key) for row in found]

    def _send(self, topic: str, rows: Sequence[Row[Any]], events: dict[tuple[str, str], bytes]) -> int:
        # Read before sending: were the log emptied in between, the row carries the old identity and is sent again.
        identity = self._log.identity(topic)
        try:
            placed = self._log.send(topic, [(row.key, events[topic, row.key]) for row in rows])
        except MessageTooLarge as error:
            if len(rows) > 1:
                return sum(self._send(topic, [row], events) for row in rows)
            logger.error("the log refuses %s %s for good: %s", topic, rows[0].key, error)
            with self._engine.begin() as connection:
                _set_state(connection, [rows[0].seq], "refused")
            return 0
        now = self._clock()
        marked = [
            {"row": row.seq, "partition": part, "offset": offset, "log_identity": identity, "published_at": now}
            for row, (part, offset) in zip(rows, placed, strict=True)
        ]
        update = sa.update(outbox).where(outbox.c.seq == sa.bindparam("row")).values(state="published")
        with self._engine.begin() as connection:
            connection.execute(update, marked)
        return len(rows)


def _set_state(connection: Connection, rows: Sequence[int], state: str) -> None:
    for part in chunked(rows):
        connection.execute(sa.update(outbox).where(outbox.c.seq.in_(part)).values(state=state))


def _batches(rows: Sequence[Row[Any]], events: dict[tuple[str, str], bytes]) -> Iterable[list[Row[Any]]]:
    batch: list[Row[Any]] = []
    size = 0
    for row in rows:
        length = len(events[row.topic, row.key])
        if batch and size + length > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def _events(connection: Connection, rows: Sequence[Row[Any]]) -> dict[tuple[str, str], bytes]:
    """(topic, key) → the event's bytes, made from the records."""
    made: dict[tuple[str, str], bytes] = {}
    for topic in dict.fromkeys(row.topic for row in rows):
        keys = list(dict.fromkeys(row.key for row in rows if row.topic == topic))
        if topic == TRAJECTORIES_TOPIC:
            query = sa.select(trajectories.c.trajectory_id, trajectories.c.event)
            found = connection.execute(query.where(trajectories.c.trajectory_id.in_(keys)))
            made |= {(topic, key): zlib.decompress(event) for key, event in found}
        elif topic == FEEDBACK_TOPIC:
            found = connection.execute(sa.select(feedback).where(feedback.c.feedback_id.in_(keys)))
            made |= {(topic, row["feedback_id"]): _feedback_event(dict(row)) for row in found.mappings()}
        elif topic.endswith(DLQ_SUFFIX):
            query = sa.select(dead_letters.c.dead_letter_id, dead_letters.c.value)
            found = connection.execute(query.where(dead_letters.c.dead_letter_id.in_(keys)))
            made |= {(topic, key): value for key, value in found}
        else:
            raise ValueError(f"the outbox names topic {topic}, which nothing here makes events for")
    return made


_INTERNAL = ("seq", "content_hash", "idempotency_key", "status", "owner")


def _feedback_event(row: dict[str, Any]) -> bytes:
    event = {name: value for name, value in row.items() if name not in _INTERNAL}
    return json.dumps({"schema_version": 1, **event}, separators=(",", ":")).encode()
