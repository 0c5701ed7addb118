"""Joins generations with feedback and releases trajectories: every step is one transaction.

What a step read may be seen again after a crash; what it decided is kept by the rows themselves. Only a generation in
state `open` can go into a trajectory, and it leaves that state in the transaction that stores the trajectory and its
outbox row, so a trajectory is released once or not at all.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection, Engine, exc

from feedback.assembly import Draft, assemble
from feedback.database import insert_ignoring, read_only
from feedback.dead_letters import Message, bury
from feedback.generations import generation_of, generation_row
from feedback.joining import Drop, Release, Signal, Target, Wait, classify, concerns, decide, due_at, target_of
from feedback.release import Decisions, make_trajectory, write_decisions
from feedback.settings import FeedbackSettings
from feedback.tables import feedback, generations
from serving.schemas import Generation

logger = logging.getLogger(__name__)

BATCH = 500
Episode = tuple[str, str]
"""(API key id, episode id): two keys that use the same episode id are not in one episode."""


class Assembler:
    """The steps that a loop calls; each returns how much it did. They raise what SQLAlchemy raises."""

    def __init__(self, engine: Engine, settings: FeedbackSettings, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock

    def store(self, messages: Sequence[Message]) -> int:
        """Store generations from the log, bury what cannot be one, and release what was only waiting for them.

        Idempotent: a generation that is stored already stays as it is. Returns how many were new.
        """
        try:
            return self._store(messages)
        except (exc.StatementError, OverflowError, UnicodeError) as error:
            if isinstance(error, exc.DBAPIError) and not isinstance(error, exc.DataError):
                raise  # the database's state, not the message: trying again may succeed
            if len(messages) > 1:
                return sum(self.store([message]) for message in messages)
            with self._engine.begin() as connection:
                bury(connection, messages[0], f"the database refuses it: {_cause(error)}", self._clock())
            return 0

    def _store(self, messages: Sequence[Message]) -> int:
        now = self._clock()
        with self._engine.begin() as connection:
            rows: list[dict[str, Any]] = []
            for message in messages:
                try:
                    rows.append(generation_row(Generation.model_validate_json(message.value), now, self._settings))
                except (ValidationError, OverflowError) as error:
                    bury(connection, message, _cause(error), now)
                    logger.error("dead letter: %s/%s@%d", message.topic, message.partition, message.offset)
            if not rows:
                return 0
            insert = insert_ignoring(connection, generations, "inference_id", "prompt_index", "turn", "choice")
            new = connection.execute(
                insert.returning(generations.c.inference_id, generations.c.api_key_id, generations.c.episode_id), rows
            ).all()
            self._place(connection, self._early(connection, new))
            self._release(connection, {(row.api_key_id, row.episode_id) for row in new}, now)
            return len(new)

    def join_new(self) -> int:
        """Give the feedback that came in since last time its place. Returns how many there were."""
        query = sa.select(feedback).where(feedback.c.status == "new").order_by(feedback.c.received_at)
        # Looking first without the write lock: this is asked many times a second, mostly for nothing.
        with read_only(self._engine).connect() as connection:
            if connection.execute(query.limit(1)).first() is None:
                return 0
        with self._engine.begin() as connection:
            rows = connection.execute(query.limit(BATCH)).all()
            if rows:
                self._release(connection, self._place(connection, rows), self._clock())
            return len(rows)

    def release_due(self) -> int:
        """Release or drop what has waited long enough. Returns how many episodes were looked at."""
        now = self._clock()
        query = sa.select(generations.c.api_key_id, generations.c.episode_id).distinct()
        query = query.where(generations.c.state == "open", generations.c.due_at <= now).limit(BATCH)
        with self._engine.begin() as connection:
            episodes = {(key, episode) for key, episode in connection.execute(query)}
            self._release(connection, episodes, now)
            return len(episodes)

    def count_orphans(self) -> int:
        """Mark feedback whose generation did not come in time. Should it come after all, it is joined still."""
        before = self._clock() - self._settings.orphan_seconds
        query = sa.update(feedback).where(feedback.c.status == "waiting", feedback.c.received_at <= before)
        with self._engine.begin() as connection:
            return connection.execute(query.values(status="orphaned")).rowcount

    def _early(self, connection: Connection, stored: Sequence[Any]) -> Sequence[Any]:
        """Feedback that was here before the generations that it is about."""
        if not stored:
            return []
        about = sa.or_(
            feedback.c.inference_id.in_({row.inference_id for row in stored}),
            feedback.c.episode_id.in_({row.episode_id for row in stored}),
        )
        query = sa.select(feedback).where(about, feedback.c.status.in_(("waiting", "orphaned")))
        return connection.execute(query).all()

    def _place(self, connection: Connection, rows: Sequence[Any]) -> set[Episode]:
        """Set the status of feedback `rows`; returns the episodes that gained something."""
        if not rows:
            return set()
        targets = _index(_targets(connection, rows))
        placed: dict[str, list[int]] = {}
        touched: set[Episode] = set()
        for row in rows:
            signal = _signal(row)
            named = targets[row.inference_id or row.episode_id]
            status = classify(signal, named)
            if status != row.status and not (status == "waiting" and row.status == "orphaned"):
                placed.setdefault(status, []).append(row.seq)
            touched |= {(t.api_key_id, t.episode_id) for t in named if t.state == "open" and concerns(signal, t)}
        for status, seqs in placed.items():
            connection.execute(sa.update(feedback).where(feedback.c.seq.in_(seqs)).values(status=status))
        return touched

    def _release(self, connection: Connection, episodes: Iterable[Episode], now: float) -> None:
        wanted = list(episodes)
        if not wanted:
            return
        opened = _open_generations(connection, wanted)
        signals = _signals(connection, opened)
        decisions = Decisions()
        for episode in opened.values():
            seqs = {generation.key: seq for seq, generation in episode}
            names = {name for target in map(target_of, dict(episode).values()) for name in _names(target)}
            about = [found for name in names for found in signals[name]]
            for draft in assemble([generation for _, generation in episode]):
                rows = [seqs[generation.key] for generation in draft.generations]
                match decide(draft, about, now, self._settings):
                    case Wait(until):
                        early = [generation for generation in draft.generations if self._due(generation) < until]
                        if early:
                            decisions.postponed[until] += [seqs[generation.key] for generation in early]
                    case Drop(reason):
                        decisions.dropped[reason] += rows
                    case Release() as release:
                        decisions.released.append((make_trajectory(draft, release, now), rows))
                        decisions.used += _feedback_ids(draft, about)
        write_decisions(connection, decisions, now)

    def _due(self, generation: Generation) -> float:
        return due_at(generation, self._settings)


def _feedback_ids(draft: Draft, signals: Sequence[Signal]) -> list[str]:
    targets = [target_of(generation) for generation in draft.generations]
    return [found.feedback_id for found in signals if any(concerns(found, target) for target in targets)]


def _signal(row: Any) -> Signal:
    return Signal(
        feedback_id=row.feedback_id,
        owner=row.owner,
        inference_id=row.inference_id,
        episode_id=row.episode_id,
        choice_index=row.choice_index,
        metric_name=row.metric_name,
        value=row.value,
        user_id=row.user_id,
        received_at=row.received_at,
    )


def _targets(connection: Connection, rows: Sequence[Any]) -> list[Target]:
    columns = [generations.c[name] for name in Target.__dataclass_fields__]
    inferences = {row.inference_id for row in rows if row.inference_id is not None}
    episodes = {row.episode_id for row in rows if row.episode_id is not None}
    found = sa.or_(generations.c.inference_id.in_(inferences), generations.c.episode_id.in_(episodes))
    return [Target(*row) for row in connection.execute(sa.select(*columns).where(found))]


def _open_generations(
    connection: Connection, episodes: Sequence[Episode]
) -> dict[Episode, list[tuple[int, Generation]]]:
    query = sa.select(generations).where(
        sa.tuple_(generations.c.api_key_id, generations.c.episode_id).in_(episodes), generations.c.state == "open"
    )
    found: dict[Episode, list[tuple[int, Generation]]] = {}
    for row in connection.execute(query):
        found.setdefault((row.api_key_id, row.episode_id), []).append((row.seq, generation_of(row)))
    return found


def _signals(connection: Connection, opened: dict[Episode, list[tuple[int, Generation]]]) -> dict[str, list[Signal]]:
    inferences = {generation.inference_id for episode in opened.values() for _, generation in episode}
    about = sa.or_(
        feedback.c.inference_id.in_(inferences), feedback.c.episode_id.in_({episode for _, episode in opened})
    )
    # Locked until the release is committed, so that a retraction in between is not answered "removed".
    query = sa.select(feedback).where(about, feedback.c.retracted_at.is_(None)).with_for_update()
    found: defaultdict[str, list[Signal]] = defaultdict(list)
    for row in connection.execute(query):
        found[row.inference_id or row.episode_id].append(_signal(row))
    return found


def _names(target: Target) -> set[str]:
    """What feedback may call `target`; an inference that is its own episode goes by one name."""
    return {target.inference_id, target.episode_id}


def _index(targets: Iterable[Target]) -> dict[str, list[Target]]:
    found: defaultdict[str, list[Target]] = defaultdict(list)
    for target in targets:
        for name in _names(target):
            found[name].append(target)
    return found


def _cause(error: Exception) -> str:
    """What is wrong, without the content of the message: a reason is shown and logged, content is not."""
    if isinstance(error, ValidationError):
        found = error.errors(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'message'}: {one['msg']}" for one in found[:5])
    if isinstance(error, exc.DBAPIError):
        return type(error.orig).__name__
    return f"{type(error).__name__}: a value is out of range"
