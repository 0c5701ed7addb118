"""A user's content leaves the record; ids, figures and times stay as tombstones.

Gone are the tokens and texts of what the user asked and got, the comments and tags on it, the comments and tags of what
the user said about anybody's answers, and the user's id itself: another name stands in its place
(`feedback.tombstones`). A conversation that the user took part in goes as a whole, as its later prompts repeat its
earlier turns. Every message about it on the log is followed by a tombstone of the same key.

Each step is one transaction, and all of them together can be repeated: what was erased before is passed over. Who
stores stands still meanwhile (`hold_writers`), and the assembler erases what comes later but was asked before.
"""

import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import BUSY_SECONDS, chunked, read_only
from feedback.dead_letters import DLQ_SUFFIX
from feedback.outbox import enqueue
from feedback.outliers import QUARANTINED, VETTED
from feedback.rated import find_rated
from feedback.schemas import FEEDBACK_TOPIC, TRAJECTORIES_TOPIC
from feedback.tables import dead_letters, erasures, feedback, generations, trajectories
from feedback.tombstones import ERASED, empty_generation, generation_key, hash_sequence, hold_writers, name_erased
from serving.schemas import GENERATIONS_TOPIC

EPISODES = 20
"""Erased in one transaction."""
BATCH = 500
_UNUSED_YET = ("new", "waiting", "joined", "orphaned", QUARANTINED, VETTED)

StopTraining = Callable[[Connection, Sequence[str], float], set[str]]
"""Have these trajectories never train, as of this time; returns those that had not trained yet."""


class Target(NamedTuple):
    """Whose content goes: the user's id, what stands in its place, and the API key (empty: of every key)."""

    user_id: str
    name: str
    api_key_id: str


@dataclass(slots=True)
class Erased:
    """What one run erased; a repetition finds nothing more to do and counts nothing."""

    at: float
    answers: int = 0
    feedback: int = 0
    trajectories: int = 0
    dead_letters: int = 0
    kept_from_training: int = 0
    """Trajectories that were released and had not trained."""
    sequences: set[str] = field(default_factory=set)
    """`hash_sequence` of what was erased, now or before."""


class Eraser:
    """Raises what SQLAlchemy raises; then call `erase` again."""

    def __init__(
        self, engine: Engine, secret: bytes, stop_training: StopTraining, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._secret = secret
        self._stop_training = stop_training
        self._clock = clock

    def erase(self, user_id: str, api_key_id: str = "") -> Erased:
        """All that was asked or said until now; what the user does from now on is stored as ever."""
        target = Target(user_id, name_erased(user_id, self._secret), api_key_id)
        found = Erased(at=self._clock())
        with self._engine.begin() as connection:
            hold_writers(connection)
            _note(connection, target, found.at)
        for step in (self._erase_answers, self._erase_said, self._erase_letters):
            while step(target, found):
                pass
        with self._engine.connect() as connection:
            rows = connection.scalars(sa.select(erasures.c.sequences).where(erasures.c.user_name == target.name))
            found.sequences = {sequence for row in rows for sequence in row}
        _settle(self._engine)
        return found

    def _erase_answers(self, target: Target, found: Erased) -> bool:
        """Some episodes that the user took part in, with all that was made of them and said about them."""
        with self._engine.begin() as connection:
            hold_writers(connection)
            rows = _answers(connection, target, found.at)
            if not rows:
                return False
            _blank(connection, rows, target, found.at)
            made = _erase_trajectories(connection, {row.trajectory_id for row in rows} - {None}, target, found.at)
            stopped = self._stop_training(connection, list(made), found.at)
            _remember(connection, target, [hash_sequence(tokens, self._secret) for tokens in made.values()])
            said = _said_about(connection, rows)
            _blank_feedback(connection, said, target, found.at)
            enqueue(connection, GENERATIONS_TOPIC, [generation_key(row._mapping) for row in rows], found.at)
            enqueue(connection, TRAJECTORIES_TOPIC, made, found.at)
        found.answers += len(rows)
        found.trajectories += len(made)
        found.kept_from_training += len(stopped)
        found.feedback += len(said)
        return True

    def _erase_said(self, target: Target, found: Erased) -> bool:
        """Some of what the user said about answers to others. What it is part of does not train any more."""
        with self._engine.begin() as connection:
            hold_writers(connection)
            rows = connection.execute(_said_by(target, found.at).limit(BATCH)).all()
            if not rows:
                return False
            used = find_rated(connection, [row for row in rows if row.status == "used"])
            stopped = self._stop_training(connection, sorted(used), found.at)
            _blank_feedback(connection, rows, target, found.at)
            unsaid = [row.seq for row in rows if row.status in _UNUSED_YET and row.retracted_at is None]
            for part in chunked(unsaid):
                query = sa.update(feedback).where(feedback.c.seq.in_(part))
                connection.execute(query.values(retracted_at=found.at))
        found.feedback += len(rows)
        found.kept_from_training += len(stopped)
        return True

    def _erase_letters(self, target: Target, found: Erased) -> bool:
        """Messages that could not be read, and name the user."""
        needles = {json.dumps(target.user_id, ensure_ascii=ascii_only).encode() for ascii_only in (True, False)}
        query = sa.select(dead_letters).where(dead_letters.c.erased_at.is_(None), dead_letters.c.created_at <= found.at)
        # There may be many, and nobody needs to stand still for it: those of the time until now are all stored.
        with read_only(self._engine).connect() as connection:
            rows = [row for row in connection.execute(query) if any(needle in bytes(row.value) for needle in needles)]
        with self._engine.begin() as connection:
            hold_writers(connection)
            for part in chunked(row.dead_letter_id for row in rows):
                blank = sa.update(dead_letters).where(dead_letters.c.dead_letter_id.in_(part))
                connection.execute(blank.values(value=b"", erased_at=found.at))
            for row in rows:
                if not row.topic.endswith(DLQ_SUFFIX):
                    enqueue(connection, row.topic + DLQ_SUFFIX, [row.dead_letter_id], found.at)
        found.dead_letters += len(rows)
        return False


def _note(connection: Connection, target: Target, at: float) -> None:
    """From now on the assembler erases what comes late."""
    mine = erasures.c.user_name == target.name, erasures.c.api_key_id == target.api_key_id
    if connection.execute(sa.update(erasures).where(*mine).values(erased_at=at)).rowcount == 0:
        row = {"user_name": target.name, "api_key_id": target.api_key_id, "erased_at": at, "sequences": []}
        connection.execute(sa.insert(erasures).values(row))


def _remember(connection: Connection, target: Target, sequences: Sequence[str]) -> None:
    mine = erasures.c.user_name == target.name, erasures.c.api_key_id == target.api_key_id
    known = connection.scalars(sa.select(erasures.c.sequences).where(*mine)).one()
    if new := sorted(set(sequences) - set(known)):
        connection.execute(sa.update(erasures).where(*mine).values(sequences=[*known, *new]))


def _answers(connection: Connection, target: Target, at: float) -> Sequence[Any]:
    """All generations of some episodes that the user took part in, not erased yet."""
    unerased = generations.c.erased_at.is_(None), generations.c.created_at <= at
    mine = [generations.c.user_id == target.user_id, *unerased]
    if target.api_key_id:
        mine.append(generations.c.api_key_id == target.api_key_id)
    names = sa.select(generations.c.api_key_id, generations.c.episode_id).where(*mine).distinct().limit(EPISODES)
    columns = [column for column in generations.c if column.type.python_type is not bytes]
    found: list[Any] = []
    for key, episode in connection.execute(names).all():
        one = generations.c.api_key_id == key, generations.c.episode_id == episode, *unerased
        found += connection.execute(sa.select(*columns).where(*one)).all()
    return found


def _blank(connection: Connection, rows: Sequence[Any], target: Target, at: float) -> None:
    values = [
        {
            "row": row.seq,
            "user": target.name if row.user_id == target.user_id else row.user_id,
            **{f"new_{name}": value for name, value in empty_generation(row._mapping, at).items()},
        }
        for row in rows
    ]
    names = [name.removeprefix("new_") for name in values[0] if name.startswith("new_")]
    query = sa.update(generations).where(generations.c.seq == sa.bindparam("row"))
    changes = {name: sa.bindparam(f"new_{name}", type_=generations.c[name].type) for name in names}
    connection.execute(query.values(user_id=sa.bindparam("user"), **changes), values)


def _erase_trajectories(
    connection: Connection, names: set[str], target: Target, at: float
) -> dict[str, tuple[int, ...]]:
    """Trajectory id → the token ids that it held."""
    found: dict[str, tuple[int, ...]] = {}
    for part in chunked(sorted(names)):
        mine = trajectories.c.trajectory_id.in_(part), trajectories.c.erased_at.is_(None)
        for row in connection.execute(sa.select(trajectories.c.trajectory_id, trajectories.c.event).where(*mine)):
            found[row.trajectory_id] = tuple(json.loads(zlib.decompress(row.event))["token_ids"])
        user = sa.case((trajectories.c.user_id == target.user_id, target.name), else_=trajectories.c.user_id)
        connection.execute(sa.update(trajectories).where(*mine).values(event=b"", user_id=user, erased_at=at))
    return found


def _said_about(connection: Connection, rows: Sequence[Any]) -> list[Any]:
    """Feedback on these generations, whoever gave it, not erased yet."""
    found: dict[int, Any] = {}
    query = sa.select(feedback).where(feedback.c.erased_at.is_(None))
    for part in chunked({row.inference_id for row in rows}):
        found |= {row.seq: row for row in connection.execute(query.where(feedback.c.inference_id.in_(part)))}
    for key, episode in {(row.api_key_id, row.episode_id) for row in rows}:
        of_episode = feedback.c.episode_id == episode, feedback.c.owner == key
        found |= {row.seq: row for row in connection.execute(query.where(*of_episode))}
    return list(found.values())


def _said_by(target: Target, at: float) -> sa.Select[Any]:
    mine = [feedback.c.user_id == target.user_id, feedback.c.erased_at.is_(None), feedback.c.received_at <= at]
    if target.api_key_id:
        # Who posts with an answer's token has no key: there the answer's key counts.
        answered = sa.select(generations.c.inference_id).where(generations.c.api_key_id == target.api_key_id)
        by_token = sa.and_(feedback.c.owner.startswith("token:"), feedback.c.inference_id.in_(answered))
        mine.append(sa.or_(feedback.c.owner == target.api_key_id, by_token))
    return sa.select(feedback).where(*mine)


def _blank_feedback(connection: Connection, rows: Sequence[Any], target: Target, at: float) -> None:
    """Its place in a reward stays as it is; what is not part of one yet will not be."""
    for part in chunked(row.seq for row in rows):
        mine = feedback.c.seq.in_(part)
        user = sa.case((feedback.c.user_id == target.user_id, target.name), else_=feedback.c.user_id)
        status = sa.case((feedback.c.status.in_(_UNUSED_YET), "unused"), else_=feedback.c.status)
        changes = {"comment": None, "tags": {}, "content_hash": ERASED, "erased_at": at}
        connection.execute(sa.update(feedback).where(mine).values(user_id=user, status=status, **changes))
    enqueue(connection, FEEDBACK_TOPIC, [row.feedback_id for row in rows], at)


def _settle(engine: Engine) -> None:
    """SQLite: move what was overwritten from the write-ahead log into the file, as far as nobody reads it now."""
    if engine.dialect.name == "sqlite":
        connection = engine.raw_connection()
        try:
            # Readers need not be waited for long: the log is written over as the service goes on.
            for pragma in ("busy_timeout=1000", "wal_checkpoint(TRUNCATE)", f"busy_timeout={int(BUSY_SECONDS * 1000)}"):
                connection.cursor().execute(f"PRAGMA {pragma}")
        finally:
            connection.close()
