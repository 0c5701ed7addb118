"""The assembler's process: generations in, trajectories out.

Each round reads what is new on ``generations.v1`` (waiting a fifth of a second for it), joins what is new in SQL, and
publishes the outbox. So feedback that was just acknowledged is on ``trajectories.v1`` within a quarter of a second, and
an idle service asks its database five times a second two questions that an index answers. (Twenty times a second took
an eighth of a core.)

Told to stop, it first stores what lies in the log: the supervisor stops it after the replicas have sent their last.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.assembler import Assembler
from feedback.database import UNAVAILABLE, chunked, open_database, read_only
from feedback.kafka_log import KafkaLog
from feedback.log_contract import LogUnavailable, Record
from feedback.outbox import Handled, OutboxRelay
from feedback.replays import Consumer, ReplayingConsumer
from feedback.topics import TOPICS
from online_rl.config import Settings
from online_rl.tables import drops, trainings
from serving.inference_ids import load_or_create_secret
from serving.schemas import GENERATIONS_TOPIC

logger = logging.getLogger(__name__)

GROUP = "assembler"
POLL_RECORDS = 200
POLL_SECONDS = 0.2
RETRY_SECONDS = 0.5
CHORES_SECONDS = 1.0
PRUNE_SECONDS = 60.0
DRAIN_SECONDS = 8.0
"""Longest that a stop waits for generations in the log; what is left then is read at the next start."""


def run_assembler(settings: Settings, bootstrap_servers: str, stop: threading.Event) -> None:
    """Run until `stop` is set. A log or database that is down is waited for; anything else ends the process."""
    engine = open_database(settings.database_url)
    log = KafkaLog(
        bootstrap_servers,
        client_id="assembler",
        topic_prefix=settings.kafka.topic_prefix,
        security=settings.kafka.security,
        replication_factor=settings.kafka.replication_factor,
        retention_ms=settings.kafka.retention_ms,
    )
    relay = OutboxRelay(engine, log, handled_by_learner(engine))
    secret = load_or_create_secret(settings.signing_key_file)
    loop = AssemblerLoop(
        log,
        Assembler(engine, settings.feedback, secret=secret),
        relay,
        lambda consumer: ReplayingConsumer(consumer, GENERATIONS_TOPIC, engine),
    )
    try:
        while not stop.is_set():
            if not loop.round():
                stop.wait(RETRY_SECONDS)
        loop.drain(DRAIN_SECONDS)
    finally:
        loop.close()
        log.close()
        engine.dispose()


def handled_by_learner(engine: Engine) -> Handled:
    """Which trajectories the learner recorded as trained on or dropped."""

    def handled(trajectory_ids: Sequence[str]) -> set[str]:
        with read_only(engine).connect() as connection:
            queries = [
                sa.select(table.c.trajectory_id).where(table.c.trajectory_id.in_(part))
                for table in (trainings, drops)
                for part in chunked(trajectory_ids)
            ]
            return {name for query in queries for (name,) in connection.execute(query)}

    return handled


class AssemblerLoop:
    """One thread, one consumer. What was read stays in hand until the database has it; only then it is committed."""

    def __init__(
        self,
        log: KafkaLog,
        assembler: Assembler,
        relay: OutboxRelay,
        follow_replays: Callable[[Consumer], Consumer] = lambda consumer: consumer,
    ) -> None:
        self._log = log
        self._assembler = assembler
        self._relay = relay
        self._follow_replays = follow_replays
        self._consumer: Consumer | None = None
        self._in_hand: list[Record] = []
        self._chores_at = 0.0
        self._refill_at = 0.0
        self._prune_at = 0.0
        self._adopted = False
        self._down: dict[str, str] = {}

    def round(self) -> bool:
        """Do what there is to do; False where the log or the database is down and a pause is due.

        With the log down the joining goes on: what it releases waits in the outbox.
        """
        log_up = self._attempt("log (reading)", LogUnavailable, self._read)
        joined = self._attempt("database", UNAVAILABLE, self._join)
        published = joined and self._attempt("log (publishing)", LogUnavailable, self._publish)
        return log_up and joined and published

    def drain(self, seconds: float) -> bool:
        """Store and join all that lies in the log now. False where that took longer, or the log or database is down."""
        deadline = time.monotonic() + seconds
        try:
            end = self._log.end_offsets(GENERATIONS_TOPIC)
            while time.monotonic() < deadline and self.round():
                if self._consumer is not None and not self._in_hand and _reached(self._consumer.position(), end):
                    return True
        except LogUnavailable as error:
            logger.warning("what lies in the log is read at the next start: %s", error)
            return False
        logger.warning("what is left in the log is read at the next start")
        return False

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _read(self) -> None:
        if self._consumer is None:
            self._log.ensure_topics(topic.name for topic in TOPICS)
            consumer = self._log.consumer(GENERATIONS_TOPIC, group=GROUP, offsets=None)
            self._consumer = self._follow_replays(consumer)
        if not self._in_hand:
            self._in_hand = self._consumer.poll(POLL_RECORDS, POLL_SECONDS)

    def _join(self) -> None:
        if not self._adopted:
            self._assembler.adopt_settings()
            self._adopted = True
        if self._in_hand:
            self._assembler.store(self._in_hand)
            self._commit()
        self._assembler.join_new()
        if time.monotonic() >= self._chores_at:
            self._assembler.release_due()
            self._assembler.count_orphans()
            self._chores_at = time.monotonic() + CHORES_SECONDS

    def _commit(self) -> None:
        stored, self._in_hand = self._in_hand, []
        if self._consumer is None:
            return
        try:
            self._consumer.commit({record.partition: record.offset + 1 for record in stored})
        except LogUnavailable as error:
            # They will be read again, and found stored.
            logger.warning("offsets not committed: %s", error)

    def _publish(self) -> None:
        if time.monotonic() >= self._refill_at:
            self._relay.refill()
            self._refill_at = time.monotonic() + CHORES_SECONDS
        while self._relay.publish():
            pass
        if time.monotonic() >= self._prune_at:
            self._relay.prune()
            self._prune_at = time.monotonic() + PRUNE_SECONDS

    def _attempt(
        self, part: str, failures: type[Exception] | tuple[type[Exception], ...], work: Callable[[], None]
    ) -> bool:
        try:
            work()
        except failures as error:
            if part not in self._down:
                logger.error("the %s is down, trying again: %s", part, error)
            self._down[part] = str(error)
            return False
        if self._down.pop(part, None):
            logger.info("the %s is back", part)
        return True


def _reached(position: Mapping[int, int], end: Mapping[int, int]) -> bool:
    return all(position.get(partition, 0) >= offset for partition, offset in end.items())
