"""Reading a topic again from an earlier place: asked for in SQL, done by the part that reads the topic.

What was handled before is known by its id and has no effect again; what was missed, or is gone from a database that was
restored, is handled now. A replay that is interrupted begins again: it is finished once all that it read is done.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.database import UNAVAILABLE, read_only
from feedback.log_contract import Record
from feedback.schemas import TRAJECTORIES_TOPIC
from feedback.tables import replays
from serving.schemas import GENERATIONS_TOPIC

logger = logging.getLogger(__name__)

TOPICS = (GENERATIONS_TOPIC, TRAJECTORIES_TOPIC)
"""Those that a part of the service reads."""
LOOK_SECONDS = 1.0


class Consumer(Protocol):
    """What a replay needs of a topic's consumer (`feedback.kafka_consumer.LogConsumer`)."""

    @property
    def emptied(self) -> int: ...
    @property
    def identity(self) -> str: ...
    def poll(self, max_records: int, timeout_s: float) -> list[Record]: ...
    def commit(self, offsets: Mapping[int, int]) -> None: ...
    def seek(self, offsets: Mapping[int, int]) -> None: ...
    def position(self) -> dict[int, int]: ...
    def offsets_at(self, moment: float) -> dict[int, int]: ...
    def close(self) -> None: ...


class Replay(NamedTuple):
    """Where reading begins again: at an offset, or at a time (Unix seconds)."""

    id: int
    from_offset: int | None
    from_time: float | None


def request_replay(engine: Engine, topic: str, from_offset: int | None, from_time: float | None, now: float) -> int:
    """Returns the request's id. It stays until the part that reads `topic` has done it."""
    row = {"topic": topic, "from_offset": from_offset, "from_time": from_time, "requested_at": now, "messages": 0}
    with engine.begin() as connection:
        return connection.execute(sa.insert(replays).values(row).returning(replays.c.id)).scalar_one()


def read_replay(engine: Engine, replay_id: int) -> dict[str, Any]:
    with read_only(engine).connect() as connection:
        return dict(connection.execute(sa.select(replays).where(replays.c.id == replay_id)).mappings().one())


class ReplayingConsumer:
    """A consumer that goes back where that was asked for, and otherwise is the one that it stands for."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        engine: Engine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._engine = engine
        self._clock = clock
        self._looked_at = float("-inf")
        self._replay: Replay | None = None
        self._until: dict[int, int] = {}
        """Partition → where reading was when the replay began."""
        self._messages = 0
        self._emptied = 0
        self.waiting: Callable[[], Mapping[int, int]] = dict
        """Partition → offset of the first record that is not done. Whoever polls again is done with what it got before,
        unless it says otherwise here."""

    @property
    def emptied(self) -> int:
        return self._consumer.emptied

    @property
    def identity(self) -> str:
        return self._consumer.identity

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """As the consumer's own. A database that is away is asked again; reading goes on meanwhile."""
        if self._clock() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = self._clock()
            try:
                self._look()
            except UNAVAILABLE as error:
                logger.warning("replays are not looked for: %s", type(error).__name__)
        found = self._consumer.poll(max_records, timeout_s)
        if self._replay is not None:
            self._messages += sum(record.offset < self._until.get(record.partition, 0) for record in found)
        return found

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._consumer.commit(offsets)

    def seek(self, offsets: Mapping[int, int]) -> None:
        self._consumer.seek(offsets)

    def position(self) -> dict[int, int]:
        return self._consumer.position()

    def offsets_at(self, moment: float) -> dict[int, int]:
        return self._consumer.offsets_at(moment)

    def close(self) -> None:
        self._consumer.close()

    def _look(self) -> None:
        if self._replay is not None and self._is_done():
            self._finish(self._replay)
        if self._replay is None and (found := self._next()) is not None:
            self._begin(found)

    def _next(self) -> Replay | None:
        waiting = replays.c.topic == self._topic, replays.c.finished_at.is_(None)
        query = sa.select(replays.c.id, replays.c.from_offset, replays.c.from_time).where(*waiting)
        with read_only(self._engine).connect() as connection:
            row = connection.execute(query.order_by(replays.c.id).limit(1)).first()
        return None if row is None else Replay(*row)

    def _begin(self, replay: Replay) -> None:
        self._until = self._consumer.position()
        if replay.from_offset is None:
            start = self._consumer.offsets_at(replay.from_time or 0.0)
        else:
            start = dict.fromkeys(self._until, replay.from_offset)
        back = {part: min(start.get(part, until), until) for part, until in self._until.items()}
        self._consumer.seek(back)
        self._replay, self._messages, self._emptied = replay, 0, self._consumer.emptied
        logger.info("%s is read again from %s up to %s", self._topic, back, self._until)

    def _is_done(self) -> bool:
        """An emptied log is read from its beginning anyway."""
        read, waiting = self._consumer.position(), self.waiting()
        return self._consumer.emptied != self._emptied or all(
            min(read.get(part, 0), waiting.get(part, until)) >= until for part, until in self._until.items()
        )

    def _finish(self, replay: Replay) -> None:
        done = {"finished_at": time.time(), "messages": self._messages}
        with self._engine.begin() as connection:
            connection.execute(sa.update(replays).where(replays.c.id == replay.id).values(done))
        logger.info("%s was read again: %d messages", self._topic, self._messages)
        self._replay = None
