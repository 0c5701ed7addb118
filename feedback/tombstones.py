"""What is left of erased content: names for users, hashes of token sequences, generations without tokens.

Who stores (the assembler, the inbox) and who erases (`feedback.erasure`) keep out of each other's transactions here,
and what was asked before an erasure but is stored after it becomes a tombstone at once.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from feedback.database import chunked
from feedback.outbox import enqueue
from feedback.packing import pack_tokens
from feedback.tables import erasures, generations
from serving.schemas import GENERATIONS_TOPIC

ERASED = "erased"
"""Why a generation was dropped; and the content hash of an erased feedback."""
_KEPT = ("schema_version", "episode_id", "model", "adapter", "sampling", "finish_reason", "trainable")


def name_erased(user_id: str, secret: bytes) -> str:
    """What stands in a user's place: the same each time, and of no use to whoever has not got `secret`."""
    return f"{ERASED}:{_keyed(secret, b'user', user_id.encode())[:32]}"


def hash_sequence(token_ids: Sequence[int], secret: bytes) -> str:
    return _keyed(secret, b"sequence", pack_tokens(token_ids))[:32]


def _keyed(secret: bytes, purpose: bytes, message: bytes) -> str:
    return hmac.new(secret, b"erasure\0" + purpose + b"\0" + message, hashlib.sha256).hexdigest()


def admit_writer(connection: Connection) -> None:
    """Begin a transaction that stores or releases: it waits for an erasing one, and is waited for."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer anyway
        connection.exec_driver_sql("LOCK TABLE erasures IN ACCESS SHARE MODE")


def hold_writers(connection: Connection) -> None:
    """Begin a transaction that erases: nothing is stored or released meanwhile."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE erasures IN ACCESS EXCLUSIVE MODE")
    else:
        # Overwritten, not only unlinked: the file must not hold it either.
        connection.exec_driver_sql("PRAGMA secure_delete=ON").close()


def empty_generation(row: Mapping[Any, Any], at: float) -> dict[str, Any]:
    """What the columns of a generation's `row` hold once it is erased."""
    is_open, data = row["state"] == "open", row["data"]
    return {
        "prompt_token_ids": b"",
        "token_ids": b"",
        "behavior_logprobs": b"",
        "data": {name: data[name] for name in _KEPT if name in data} | {"spans": [], "text": ""},
        "state": "dropped" if is_open else row["state"],
        "drop_reason": ERASED if is_open else row["drop_reason"],
        "erased_at": at,
    }


def generation_key(row: Mapping[Any, Any]) -> str:
    """`serving.schemas.Generation.key` of a row."""
    return "/".join(str(row[name]) for name in ("inference_id", "prompt_index", "turn", "choice"))


def erase_late(
    connection: Connection, rows: Sequence[dict[str, Any]], secret: bytes, now: float
) -> list[dict[str, Any]]:
    """`rows` of generations that are about to be stored; of those asked before their erasure, tombstones.

    They may have been stored and erased before: a log that was emptied gets the last minutes again. So each is
    followed by a tombstone on the log, too.
    """
    if connection.execute(sa.select(erasures.c.id).where(erasures.c.id > 0).limit(1)).first() is None:
        return list(rows)
    names = {row["user_id"]: name_erased(row["user_id"], secret) for row in rows if row["user_id"] is not None}
    until = _erased_users(connection, set(names.values()))
    episodes = _erased_episodes(connection, rows)
    found: list[dict[str, Any]] = []
    late: list[str] = []
    for row in rows:
        key, user = row["api_key_id"], names.get(row["user_id"])
        of_user = max((until.get((user, one), 0.0) for one in ("", key)), default=0.0) if user else 0.0
        of_episode = episodes.get((key, row["episode_id"]), 0.0)
        if row["created_at"] > max(of_user, of_episode):
            found.append(row)
            continue
        # As of the erasure, not of now: what is asked after it stays.
        emptied = empty_generation(row, max(of_user, of_episode))
        found.append(row | emptied | ({"user_id": user} if row["created_at"] <= of_user else {}))
        late.append(generation_key(row))
    enqueue(connection, GENERATIONS_TOPIC, late, now)
    return found


def _erased_users(connection: Connection, names: set[str]) -> dict[tuple[str, str], float]:
    """(What stands in the user's place, API key or empty) → until when."""
    query = sa.select(erasures.c.user_name, erasures.c.api_key_id, erasures.c.erased_at)
    return {
        (row.user_name, row.api_key_id): row.erased_at
        for part in chunked(names)
        for row in connection.execute(query.where(erasures.c.user_name.in_(part)))
    }


def _erased_episodes(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """(API key, episode) → until when it was erased."""
    by_key: dict[str, set[str]] = {}
    for row in rows:
        by_key.setdefault(row["api_key_id"], set()).add(row["episode_id"])
    found: dict[tuple[str, str], float] = {}
    until = sa.func.max(generations.c.erased_at)
    for key, episodes in by_key.items():
        for part in chunked(episodes):
            mine = generations.c.api_key_id == key, generations.c.episode_id.in_(part)
            query = sa.select(generations.c.episode_id, until).where(*mine, generations.c.erased_at.is_not(None))
            for episode, at in connection.execute(query.group_by(generations.c.episode_id)):
                found[key, episode] = at
    return found
