"""Messages that cannot be handled: kept with the reason, put on ``<topic>.dlq``, and put back on demand."""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import chunked, insert_ignoring, read_only
from feedback.schemas import Message
from feedback.tables import dead_letters, outbox

DLQ_SUFFIX = ".dlq"
ID_PREFIX = "dl_"
"""Of a dead letter's id; the id of no other record begins so."""


class CannotRetry(ValueError):
    """A dead letter cannot be put back on its topic; the message says which and why."""


def bury(connection: Connection, message: Message, reason: str, now: float) -> None:
    """Keep `message` with its `reason` and have the relay put it on the dead letter topic.

    The id follows from the message's place and content, so that reading it again buries it once.
    """
    place = f"{message.topic}\n{message.partition}\n{message.offset}\n".encode()
    dead_letter_id = f"{ID_PREFIX}{hashlib.sha256(place + message.value).hexdigest()[:32]}"
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
    """The newest dead letters, without their values; those put back already only if asked for."""
    columns = [column for column in dead_letters.c if column.name != "value"]
    query = sa.select(*columns).order_by(dead_letters.c.created_at.desc()).limit(limit)
    if not replayed:
        query = query.where(dead_letters.c.replayed_at.is_(None))
    with read_only(engine).connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def find_dead_letter(engine: Engine, dead_letter_id: str) -> dict[str, Any] | None:
    """One with its value, which may hold what users wrote."""
    query = sa.select(dead_letters).where(dead_letters.c.dead_letter_id == dead_letter_id)
    with read_only(engine).connect() as connection:
        found = connection.execute(query).mappings().first()
    return None if found is None else dict(found)


def retry(engine: Engine, dead_letter_ids: Sequence[str], *, again: bool = False) -> list[str]:
    """Have the relay put dead letters back on the topic they came from; returns the ids of those.

    One that was put back before is left out unless `again`: marked and given to the outbox in one transaction, each is
    put back once. Raises CannotRetry where one does not exist or was erased; then none is.
    """
    now = time.time()
    with engine.begin() as connection:
        rows = {
            row.dead_letter_id: row
            for part in chunked(dead_letter_ids)
            for row in connection.execute(
                sa.select(dead_letters).where(dead_letters.c.dead_letter_id.in_(part)).with_for_update()
            )
        }
        for name in dead_letter_ids:
            if name not in rows:
                raise CannotRetry(f"there is no dead letter {name}; `online-rl dlq list --all` shows all")
            if rows[name].erased_at is not None:
                raise CannotRetry(f"the content of dead letter {name} was erased with its user")
        chosen = [name for name in dict.fromkeys(dead_letter_ids) if again or rows[name].replayed_at is None]
        for part in chunked(chosen):
            marked = sa.update(dead_letters).where(dead_letters.c.dead_letter_id.in_(part))
            connection.execute(marked.values(replayed_at=now))
        waiting = [{"topic": rows[name].topic, "key": name, "created_at": now, "state": "waiting"} for name in chosen]
        if waiting:
            connection.execute(sa.insert(outbox), waiting)
    return chosen


def unretried(engine: Engine) -> list[str]:
    """The ids of all that were neither put back nor erased, oldest first."""
    query = sa.select(dead_letters.c.dead_letter_id).order_by(dead_letters.c.created_at)
    waiting = dead_letters.c.replayed_at.is_(None), dead_letters.c.erased_at.is_(None)
    with read_only(engine).connect() as connection:
        return list(connection.scalars(query.where(*waiting)))
