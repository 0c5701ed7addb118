"""From SQL to the log: whatever was committed is published, in order, at least once.

A row says only *which* event is to be published; the event is made from the record it names. So an emptied log can be
filled again from the record, and nothing is stored twice. The event of a record that was erased is a tombstone: a
message without a value, by which a log with compaction removes those before it with the same key.
"""

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Row

from feedback.database import chunked, read_only
from feedback.dead_letters import DLQ_SUFFIX, ID_PREFIX
from feedback.log_contract import MessageTooLarge
from feedback.schemas import FEEDBACK_TOPIC, TRAJECTORIES_TOPIC, FeedbackEvent
from feedback.tables import dead_letters, feedback, generations, outbox, trajectories
from serving.schemas import GENERATIONS_TOPIC

logger = logging.getLogger(__name__)

BATCH_ROWS = 500
BATCH_BYTES = 4 * 1024 * 1024
KEEP_PUBLISHED_SECONDS = 3600.0

Handled = Callable[[Sequence[str]], set[str]]
"""Which of these trajectory ids the learner is done with (trained on, or dropped)."""


class Event(NamedTuple):
    """One message; without a value it is a tombstone."""

    key: str
    value: bytes | None


Events = dict[tuple[str, str], Event]
"""By topic and the key of the outbox row."""


class Log(Protocol):
    """What the relay needs of the log."""

    def send(self, topic: str, events: Sequence[tuple[str, bytes | None]]) -> list[tuple[int, int]]: ...
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
            # Its record is not there any more: there is nothing left to say.
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
        for topic in (FEEDBACK_TOPIC, GENERATIONS_TOPIC):
            gone = sa.delete(outbox).where(
                outbox.c.topic == topic, outbox.c.state.in_(("published", "done")), outbox.c.published_at < old
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

    def _send(self, topic: str, rows: Sequence[Row[Any]], events: Events) -> int:
        # Read before sending: were the log emptied in between, the row carries the old identity and is sent again.
        identity = self._log.identity(topic)
        try:
            placed = self._log.send(topic, [events[topic, row.key] for row in rows])
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
            # A dead letter that was put back is not asked for again: nobody knows whether it was read.
            | {"next_state": "done" if row.key.startswith(ID_PREFIX) else "published"}
            for row, (part, offset) in zip(rows, placed, strict=True)
        ]
        update = sa.update(outbox).where(outbox.c.seq == sa.bindparam("row")).values(state=sa.bindparam("next_state"))
        with self._engine.begin() as connection:
            connection.execute(update, marked)
        return len(rows)


def _set_state(connection: Connection, rows: Sequence[int], state: str) -> None:
    for part in chunked(rows):
        connection.execute(sa.update(outbox).where(outbox.c.seq.in_(part)).values(state=state))


def _batches(rows: Sequence[Row[Any]], events: Events) -> Iterable[list[Row[Any]]]:
    batch: list[Row[Any]] = []
    size = 0
    for row in rows:
        length = len(events[row.topic, row.key].value or b"")
        if batch and size + length > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def _events(connection: Connection, rows: Sequence[Row[Any]]) -> Events:
    """The events, made from the records. Those whose record is not there are left out."""
    made: Events = {}
    for topic in dict.fromkeys(row.topic for row in rows):
        keys = list(dict.fromkeys(row.key for row in rows if row.topic == topic))
        letters = [key for key in keys if key.startswith(ID_PREFIX)]
        records = [key for key in keys if not key.startswith(ID_PREFIX)]
        if letters:
            query = sa.select(dead_letters).where(dead_letters.c.dead_letter_id.in_(letters))
            for row in connection.execute(query):
                # On its own topic it has the key that it came with, and on the dead letter topic its id.
                key = row.dead_letter_id if topic.endswith(DLQ_SUFFIX) else row.key or row.dead_letter_id
                made[topic, row.dead_letter_id] = Event(key, None if row.erased_at is not None else row.value)
        if records:
            found = _read(connection, topic, records)
            made |= {(topic, key): Event(key, value) for key, value in found.items()}
    return made


def _read(connection: Connection, topic: str, keys: Sequence[str]) -> dict[str, bytes | None]:
    """Key → the event of the record that it names; None where that was erased."""
    if topic == TRAJECTORIES_TOPIC:
        columns = trajectories.c.trajectory_id, trajectories.c.event, trajectories.c.erased_at
        found = connection.execute(sa.select(*columns).where(trajectories.c.trajectory_id.in_(keys)))
        return {key: None if erased else zlib.decompress(event) for key, event, erased in found}
    if topic == FEEDBACK_TOPIC:
        found = connection.execute(sa.select(feedback).where(feedback.c.feedback_id.in_(keys))).mappings()
        return {row["feedback_id"]: None if row["erased_at"] else _feedback_event(row) for row in found}
    if topic == GENERATIONS_TOPIC:
        # Replicas publish generations themselves; from here come only the tombstones of those that were erased.
        names = ("inference_id", "prompt_index", "turn", "choice")
        wanted = generations.c.inference_id.in_({key.rsplit("/", 3)[0] for key in keys})
        query = sa.select(*(generations.c[name] for name in names))
        rows = connection.execute(query.where(wanted, generations.c.erased_at.is_not(None)))
        return dict.fromkeys({"/".join(map(str, row)) for row in rows} & set(keys))
    raise ValueError(f"the outbox names topic {topic}, which nothing here makes events for")


_EVENT_COLUMNS = set(FeedbackEvent.model_fields) - {"schema_version"}


def _feedback_event(row: Mapping[Any, Any]) -> bytes:
    return FeedbackEvent(**{name: row[name] for name in _EVENT_COLUMNS}).model_dump_json().encode()
