"""Where feedback becomes durable: concurrent requests share one transaction (group commit).

A commit costs the disk a few milliseconds whatever it holds. So one thread takes everything that waits, writes it
with its outbox rows in one transaction, and answers all of them when it is on disk. Alone, a feedback waits for
nobody.
"""

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import UNAVAILABLE, DatabaseUnavailable, chunked, insert_ignoring
from feedback.joining import TOKEN_OWNER
from feedback.outbox import enqueue
from feedback.schemas import FEEDBACK_TOPIC, FeedbackIn
from feedback.tables import feedback, generations
from feedback.tombstones import ERASED, admit_writer
from feedback.validation import content_hash

MAX_BATCH = 256
MAX_WAITING = 8192


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid feedback on its way into the database. `item.inference_id` is the bare id, `value` on its metric."""

    item: FeedbackIn
    value: float
    owner: str


class Outcome(NamedTuple):
    """`stored`, `again` (the same key and content: the first one's id), `conflict`, or `foreign` (another key's)."""

    kind: Literal["stored", "again", "conflict", "foreign"]
    feedback_id: str


class Ticket(NamedTuple):
    submission: Submission
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Outcome]"


class Inbox:
    """Takes submissions from any event loop; one thread of its own writes them."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock
        self._waiting: queue.Queue[Ticket | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="feedback-inbox", daemon=True)
        self._thread.start()

    async def submit(self, submission: Submission) -> Outcome:
        """Returns once it is on disk. Raises DatabaseUnavailable; then nothing of it was stored."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(submission, loop, loop.create_future())
        try:
            self._waiting.put_nowait(ticket)
        except queue.Full:
            raise DatabaseUnavailable("more feedback waits for the database than can be held") from None
        return await ticket.answer

    def close(self) -> None:
        """Write what waits, then stop."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            tickets: list[Ticket] = []
            ticket = self._waiting.get()
            while ticket is not None:
                tickets.append(ticket)
                if len(tickets) >= MAX_BATCH or self._waiting.empty():
                    break
                ticket = self._waiting.get()
            # Whoever gave up waiting must not find its feedback stored after all.
            tickets = [one for one in tickets if not one.answer.cancelled()]
            if tickets:
                self._answer(tickets)
            if ticket is None:
                return

    def _answer(self, tickets: Sequence[Ticket]) -> None:
        try:
            with self._engine.begin() as connection:
                outcomes = store_feedback(connection, [ticket.submission for ticket in tickets], self._clock())
        except UNAVAILABLE as error:
            failure = DatabaseUnavailable(f"the database does not take feedback: {type(error).__name__}")
            _resolve(tickets, lambda answer, _: answer.set_exception(failure))
        except Exception as error:  # noqa: BLE001 - handed to the request it concerns; the thread must live on
            if len(tickets) > 1:
                for ticket in tickets:
                    self._answer([ticket])
            else:
                _resolve(tickets, lambda answer, _, error=error: answer.set_exception(error))
        else:
            _resolve(tickets, lambda answer, index: answer.set_result(outcomes[index]))


def _resolve(tickets: Sequence[Ticket], settle: "Callable[[asyncio.Future[Outcome], int], None]") -> None:
    def settle_all(loop: asyncio.AbstractEventLoop) -> None:
        for index, ticket in enumerate(tickets):
            if ticket.loop is loop and not ticket.answer.done():
                settle(ticket.answer, index)

    for loop in {ticket.loop for ticket in tickets}:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle_all, loop)


def store_feedback(connection: Connection, submissions: Sequence[Submission], now: float) -> list[Outcome]:
    """Store `submissions` with their outbox rows in the caller's transaction; one outcome each, in order."""
    admit_writer(connection)
    foreign = _foreign(connection, submissions)
    # Strictly rising times: of two votes that are stored together, the one that came later is the latest.
    times = [now + index * 1e-6 for index in range(len(submissions))]
    rows = {index: _row(one, times[index]) for index, one in enumerate(submissions) if index not in foreign}
    stored = _insert(connection, list(rows.values()))
    enqueue(
        connection, FEEDBACK_TOPIC, [row["feedback_id"] for row in rows.values() if row["feedback_id"] in stored], now
    )
    repeated = {index: row for index, row in rows.items() if row["feedback_id"] not in stored}
    earlier = _earlier(connection, list(repeated.values()))
    outcomes: list[Outcome] = []
    for index, submission in enumerate(submissions):
        if index in foreign:
            outcomes.append(Outcome("foreign", ""))
        elif index not in repeated:
            outcomes.append(Outcome("stored", rows[index]["feedback_id"]))
        else:
            feedback_id, hashed = earlier[submission.owner, submission.item.idempotency_key]
            # What an erased one said is not known any more: whoever sends it again is told that it was stored.
            kind = "again" if hashed in (rows[index]["content_hash"], ERASED) else "conflict"
            outcomes.append(Outcome(kind, feedback_id))
    return outcomes


def new_feedback_id() -> str:
    return f"fb_{uuid.uuid4().hex}"


def _row(submission: Submission, now: float) -> dict[str, Any]:
    item = submission.item
    return {
        "feedback_id": new_feedback_id(),
        "owner": submission.owner,
        "idempotency_key": item.idempotency_key,
        "content_hash": content_hash(item),
        "inference_id": item.inference_id,
        "episode_id": item.episode_id,
        "choice_index": item.choice_index,
        "metric_name": item.metric_name,
        "value": submission.value,
        "user_id": item.user,
        "comment": item.comment,
        "tags": item.tags,
        "received_at": now,
        "status": "new",
    }


def _foreign(connection: Connection, submissions: Sequence[Submission]) -> set[int]:
    """Which submissions name an inference that is stored and belongs to another key."""
    wanted = {one.item.inference_id for one in submissions if one.item.inference_id is not None}
    query = sa.select(generations.c.inference_id, generations.c.api_key_id).distinct()
    keys: dict[str | None, str] = {}
    for part in chunked(wanted):
        found = connection.execute(query.where(generations.c.inference_id.in_(part)))
        keys |= {row.inference_id: row.api_key_id for row in found}
    return {
        index
        for index, one in enumerate(submissions)
        if one.item.inference_id in keys
        and one.owner not in (keys[one.item.inference_id], f"{TOKEN_OWNER}{one.item.inference_id}")
    }


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> set[str]:
    if not rows:
        return set()
    # One order for everybody, so that two writers with the same keys wait for each other instead of deadlocking.
    ordered = sorted(rows, key=lambda row: (str(row["owner"]), str(row["idempotency_key"])))
    insert = insert_ignoring(connection, feedback, "owner", "idempotency_key").returning(feedback.c.feedback_id)
    return set(connection.execute(insert, ordered).scalars())


def _earlier(connection: Connection, rows: list[dict[str, Any]]) -> dict[tuple[str, str | None], tuple[str, str]]:
    query = sa.select(feedback.c.idempotency_key, feedback.c.feedback_id, feedback.c.content_hash)
    found: dict[tuple[str, str | None], tuple[str, str]] = {}
    # An owner at a time: SQLite finds pairs of owner and key by no index.
    for owner in {row["owner"] for row in rows}:
        for keys in chunked(row["idempotency_key"] for row in rows if row["owner"] == owner):
            mine = feedback.c.owner == owner, feedback.c.idempotency_key.in_(keys)
            found |= {(owner, key): (name, hashed) for key, name, hashed in connection.execute(query.where(*mine))}
    return found
