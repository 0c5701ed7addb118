"""Messages that cannot be handled: kept with the reason, put on ``<topic>.dlq``, and replayed on demand."""

import hashlib
import time
from collections.abc import Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import chunked, insert_ignoring
from feedback.schemas import Message
from feedback.tables import dead_letters, outbox

DLQ_SUFFIX = ".dlq"


class Sender(Protocol):
    """What replaying needs of the log."""

    def send(self, topic: str, events: Sequence[tuple[str, bytes]]) -> list[tuple[int, int]]: ...


def bury(connection: Connection, message: Message, reason: str, now: float) -> None:
    """Keep `message` with its `reason` and have the relay put it on the dead letter topic.

    The id follows from the message's place and content, so that reading it again buries it once.
    """
    place = f"{message.topic}\n{message.partition}\n{message.offset}\n".encode()
    dead_letter_id = f"dl_{hashlib.sha256(place + message.value).hexdigest()[:32]}"
    row = {
        "dead_letter_id": dead_letter_id,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key and _without_nul(message.key),
        "value": message.value,
        # It may name a field that the message made up.
        "reason": _without_nul(reason),
        "created_at": now,
    }
    buried = connection.execute(insert_ignoring(connection, dead_letters).returning(dead_letters.c.dead_letter_id), row)
    if buried.first() is not None and not message.topic.endswith(DLQ_SUFFIX):
        waiting = {"topic": message.topic + DLQ_SUFFIX, "key": dead_letter_id, "created_at": now, "state": "waiting"}
        connection.execute(sa.insert(outbox), waiting)


def _without_nul(text: str) -> str:
    """PostgreSQL takes no NUL in a text."""
    return text.replace("\0", "\ufffd")


def list_dead_letters(engine: Engine, *, limit: int = 100, replayed: bool = False) -> list[dict[str, Any]]:
    """The newest dead letters, without their values; those replayed already only if asked for."""
    columns = [column for column in dead_letters.c if column.name != "value"]
    query = sa.select(*columns).order_by(dead_letters.c.created_at.desc()).limit(limit)
    if not replayed:
        query = query.where(dead_letters.c.replayed_at.is_(None))
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def replay(engine: Engine, log: Sender, dead_letter_ids: Sequence[str], *, again: bool = False) -> list[str]:
    """Send dead letters to the topic they came from; returns the ids that were sent.

    One that was replayed before is left out unless `again`. Raises KeyError for an id that does not exist, and
    whatever `log.send` raises, with those before it marked as replayed.
    """
    with engine.connect() as connection:
        queries = [
            sa.select(dead_letters).where(dead_letters.c.dead_letter_id.in_(part)) for part in chunked(dead_letter_ids)
        ]
        found = {row["dead_letter_id"]: row for query in queries for row in connection.execute(query).mappings()}
    missing = [name for name in dead_letter_ids if name not in found]
    if missing:
        raise KeyError(f"no dead letter {missing[0]}")
    sent: list[str] = []
    for name in dead_letter_ids:
        row = found[name]
        if row["replayed_at"] is not None and not again:
            continue
        log.send(row["topic"], [(row["key"] or name, row["value"])])
        with engine.begin() as connection:
            marked = sa.update(dead_letters).where(dead_letters.c.dead_letter_id == name)
            connection.execute(marked.values(replayed_at=time.time()))
        sent.append(name)
    return sent
