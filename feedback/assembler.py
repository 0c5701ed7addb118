"""Joins generations with feedback and releases trajectories: every step is one transaction.

What a step read may be seen again after a crash; what it decided is kept by the rows themselves. Only a generation in
state `open` can go into a trajectory, and it leaves that state in the transaction that stores the trajectory and its
outbox row, so a trajectory is released once or not at all.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection, Engine, exc

from feedback.assembly import Draft, assemble, crowded_out
from feedback.database import chunked, insert_ignoring, read_only
from feedback.dead_letters import bury
from feedback.generations import generation_row
from feedback.joinable import Episode, Open, by_name, read_open, read_signals, read_targets, signal_of, signals_about
from feedback.joining import Drop, Release, Signal, Wait, classify, concerns, decide, target_of
from feedback.outliers import QUARANTINED, VETTED, WINDOW, OutlierWatch
from feedback.release import Decisions, make_trajectory, write_decisions
from feedback.schemas import Message
from feedback.settings import FeedbackSettings
from feedback.tables import feedback, generations
from feedback.tombstones import admit_writer, erase_late
from serving.schemas import Generation

logger = logging.getLogger(__name__)

BATCH = 500
EPISODES = 50
"""Episodes whose tokens are in memory together."""


class Assembler:
    """The steps that a loop calls; each returns how much it did. They raise what SQLAlchemy raises."""

    def __init__(
        self,
        engine: Engine,
        settings: FeedbackSettings,
        clock: Callable[[], float] = time.time,
        *,
        secret: bytes = b"",
    ) -> None:
        """`secret`: what users' names are hashed with once they are erased (`feedback.tombstones`)."""
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._secret = secret
        self._watch = OutlierWatch(settings)

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
            admit_writer(connection)
            rows: list[dict[str, Any]] = []
            for message in messages:
                try:
                    rows.append(generation_row(Generation.model_validate_json(message.value), now, self._settings))
                except (ValidationError, OverflowError) as error:
                    bury(connection, message, _cause(error), now)
                    logger.error("dead letter: %s/%s@%d", message.topic, message.partition, message.offset)
            if not rows:
                return 0
            rows = erase_late(connection, rows, self._secret, now)
            insert = insert_ignoring(connection, generations, "inference_id", "prompt_index", "turn", "choice")
            new = connection.execute(
                insert.returning(generations.c.inference_id, generations.c.api_key_id, generations.c.episode_id), rows
            ).all()
            self._place(connection, self._early(connection, new))
            self._release(connection, {(row.api_key_id, row.episode_id) for row in new}, now)
            return len(new)

    def join_new(self) -> int:
        """Give the feedback that came in since last time its place. Returns how many there were."""
        query = sa.select(feedback).where(feedback.c.status.in_(("new", VETTED))).order_by(feedback.c.received_at)
        # Looking first without the write lock: this is asked many times a second, mostly for nothing.
        with read_only(self._engine).connect() as connection:
            if connection.execute(query.limit(1)).first() is None:
                return 0
        with self._engine.begin() as connection:
            admit_writer(connection)
            rows = connection.execute(query.limit(BATCH)).all()
            if rows:
                usual = self._quarantine(connection, rows)
                self._release(connection, self._place(connection, usual), self._clock())
            return len(rows)

    def _quarantine(self, connection: Connection, rows: Sequence[Any]) -> list[Any]:
        """Put outliers aside; returns the others."""
        usual: list[Any] = []
        aside: list[int] = []
        for row in rows:
            if row.status != VETTED and self._watch.is_outlier(row.metric_name, row.value):
                aside.append(row.seq)
                logger.warning("feedback %s is an outlier of %s and in quarantine", row.feedback_id, row.metric_name)
            else:
                usual.append(row)
                self._watch.learn(row.metric_name, [row.value])
        for part in chunked(aside):
            connection.execute(sa.update(feedback).where(feedback.c.seq.in_(part)).values(status=QUARANTINED))
        return usual

    def release_due(self) -> int:
        """Release or drop what has waited long enough. Returns how many episodes were looked at.

        Some episodes a transaction, so that feedback need not wait long for the write lock.
        """
        now = self._clock()
        query = sa.select(generations.c.api_key_id, generations.c.episode_id)
        query = query.where(generations.c.state == "open", generations.c.due_at <= now)
        with read_only(self._engine).connect() as connection:
            due = connection.execute(query.order_by(generations.c.due_at).limit(BATCH))
            episodes = list(dict.fromkeys((key, episode) for key, episode in due))
        for part in chunked(episodes, EPISODES):
            with self._engine.begin() as connection:
                admit_writer(connection)
                self._release(connection, part, now)
        return len(episodes)

    def adopt_settings(self) -> None:
        """Have what waits already wait as long as the settings say now, and learn what is usual: to be called once,
        before anything else.

        An earlier turn of an episode that goes on is looked at when it would be due by itself, and postponed again.
        """
        alone = generations.c.finished_at + self._settings.wait_seconds
        in_episode = generations.c.finished_at + max(self._settings.wait_seconds, self._settings.episode_idle_seconds)
        due = sa.case((generations.c.episode_id == generations.c.inference_id, alone), else_=in_episode)
        changed = sa.update(generations).where(generations.c.state == "open", generations.c.due_at != due)
        with self._engine.begin() as connection:
            connection.execute(changed.values(due_at=due))
        if self._watch.metrics:
            self._learn_what_is_usual()

    def _learn_what_is_usual(self) -> None:
        newest = sa.select(feedback.c.seq, feedback.c.metric_name, feedback.c.value, feedback.c.status)
        # Of the newest ones whatever they are about, so that a metric nobody uses does not read the whole table.
        newest = newest.order_by(feedback.c.seq.desc()).limit(4 * WINDOW * len(self._watch.metrics)).subquery()
        query = sa.select(newest.c.metric_name, newest.c.value).order_by(newest.c.seq)
        taken = newest.c.metric_name.in_(self._watch.metrics), newest.c.status.in_(("used", "joined", "late"))
        with read_only(self._engine).connect() as connection:
            for metric, value in connection.execute(query.where(*taken)):
                self._watch.learn(metric, [value])

    def count_orphans(self) -> int:
        """Mark feedback whose generation did not come in time. Should it come after all, it is joined still."""
        before = self._clock() - self._settings.orphan_seconds
        query = sa.update(feedback).where(feedback.c.status == "waiting", feedback.c.received_at <= before)
        with self._engine.begin() as connection:
            return connection.execute(query.values(status="orphaned")).rowcount

    def _early(self, connection: Connection, stored: Sequence[Any]) -> Sequence[Any]:
        """Feedback that was here before the generations that it is about."""
        query = sa.select(feedback).where(feedback.c.status.in_(("waiting", "orphaned")))
        found: list[Any] = []
        for names in chunked({row.inference_id for row in stored}):
            found += connection.execute(query.where(feedback.c.inference_id.in_(names)))
        for names in chunked({row.episode_id for row in stored}):
            found += connection.execute(query.where(feedback.c.episode_id.in_(names)))
        return found

    def _place(self, connection: Connection, rows: Sequence[Any]) -> set[Episode]:
        """Set the status of feedback `rows`; returns the episodes that gained something."""
        if not rows:
            return set()
        targets = by_name(read_targets(connection, rows))
        placed: dict[str, list[int]] = {}
        touched: set[Episode] = set()
        for row in rows:
            signal = signal_of(row)
            named = targets[row.inference_id or row.episode_id]
            status = classify(signal, named)
            if status != row.status and not (status == "waiting" and row.status == "orphaned"):
                placed.setdefault(status, []).append(row.seq)
            touched |= {(t.api_key_id, t.episode_id) for t in named if t.state == "open" and concerns(signal, t)}
        for status, seqs in placed.items():
            for part in chunked(seqs):
                connection.execute(sa.update(feedback).where(feedback.c.seq.in_(part)).values(status=status))
        return touched

    def _release(self, connection: Connection, episodes: Iterable[Episode], now: float) -> None:
        """Release, drop or postpone what is open of `episodes`; some at a time, as all its tokens are in memory."""
        for part in chunked(episodes, EPISODES):
            opened = read_open(connection, part)
            signals = read_signals(connection, opened, self._watch)
            decisions = Decisions()
            for episode in opened.values():
                self._decide(episode, signals, now, decisions)
            write_decisions(connection, decisions, now)

    def _decide(
        self, episode: Sequence[Open], signals: Mapping[str, Sequence[Signal]], now: float, decisions: Decisions
    ) -> None:
        rows = {one.generation.key: one for one in episode}
        drafts = assemble([one.generation for one in episode])
        about = [signals_about(draft, signals) for draft in drafts]
        found = [decide(draft, rated, now, self._settings) for draft, rated in zip(drafts, about, strict=True)]
        waiting = [index for index, decision in enumerate(found) if isinstance(decision, Wait)]
        for place in crowded_out([drafts[index] for index in waiting], self._settings.episode_answers):
            index = waiting[place]
            found[index] = decide(drafts[index], about[index], now, self._settings, crowded=True)
        for draft, rated, decision in zip(drafts, about, found, strict=True):
            held = [rows[generation.key] for generation in draft.generations]
            seqs = [one.seq for one in held]
            match decision:
                case Wait(until):
                    decisions.postponed[until] += [one.seq for one in held if one.due_at <= now]
                case Drop(reason):
                    decisions.dropped[reason] += seqs
                case Release() as release:
                    decisions.released.append((make_trajectory(draft, release, now), seqs))
                    decisions.used += _feedback_ids(draft, rated)


def _feedback_ids(draft: Draft, signals: Sequence[Signal]) -> list[str]:
    targets = [target_of(generation) for generation in draft.generations]
    return [found.feedback_id for found in signals if any(concerns(found, target) for target in targets)]


def _cause(error: Exception) -> str:
    """What is wrong, without the content of the message: a reason is shown and logged, content is not."""
    if isinstance(error, ValidationError):
        found = error.errors(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'message'}: {one['msg']}" for one in found[:5])
    if isinstance(error, exc.DBAPIError):
        return type(error.orig).__name__
    return f"{type(error).__name__}: a value is out of range"
