"""From the log into the buffer: what is new, can be read, and was not handled before.

A log that was emptied is read again from its beginning; what waits in the buffer meanwhile is found there again.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pydantic import ValidationError

from feedback.schemas import Message, Trajectory
from online_rl.buffer import Arrival, Buffer
from online_rl.ledger import Ledger

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
POLL_RECORDS = 256


class TrajectorySource(Protocol):
    """The log of trajectories. One that was emptied starts again at offset 0 by itself and changes its `identity`."""

    @property
    def identity(self) -> str: ...
    def poll(self, max_records: int, timeout_s: float) -> Sequence[Message]: ...
    def commit(self, offsets: dict[int, int]) -> None: ...


BuryMessage = Callable[[Message, str], None]
"""Keep a message that cannot be handled, with the reason."""


class Intake:
    """Reads one log into one buffer, and knows how far."""

    def __init__(
        self,
        source: TrajectorySource,
        buffer: Buffer,
        ledger: Ledger,
        bury: BuryMessage,
        *,
        batch_size: int,
        offsets: Mapping[int, int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`offsets`: partition → next offset, where `source` stands."""
        self._source = source
        self._buffer = buffer
        self._ledger = ledger
        self._bury = bury
        self._batch_size = batch_size
        self._clock = clock
        self._read = dict(offsets)
        self._in_hand: list[Message] = []
        self.identity = source.identity
        """Of the log that the offsets belong to."""

    def offsets(self) -> dict[int, int]:
        """Partition → offset before which nothing is waiting in the buffer."""
        return self._buffer.safe_offsets(self._read, self.identity)

    def commit(self) -> None:
        """Raises what the log raises."""
        self._source.commit(self.offsets())

    def consume(self) -> None:
        """Read new trajectories into the buffer, or bury them. Raises what the log or the database raises."""
        # Members of groups that are not whole yet take no room: the ones they wait for come behind them.
        room = self._buffer.room(self._clock())
        if not self._in_hand and room > 0:
            # A full batch is there already: look for more, but do not wait for it.
            wait = 0.0 if self._buffer.ready(self._clock()) >= self._batch_size else POLL_SECONDS
            self._in_hand = list(self._source.poll(min(room, POLL_RECORDS), wait))
        if self._source.identity != self.identity:
            logger.warning("the log of trajectories was emptied; reading it again from the beginning")
            self.identity = self._source.identity
            self._read = {}
        parsed = [(record, self._parse(record)) for record in self._in_hand]
        found = [trajectory for _, trajectory in parsed if trajectory is not None]
        known = self._ledger.handled([trajectory.trajectory_id for trajectory in found]) if found else set()
        for record, trajectory in parsed:
            if trajectory is not None and trajectory.trajectory_id not in known:
                arrival = Arrival(trajectory, record.partition, record.offset, self.identity)
                if trajectory.trajectory_id in self._buffer.ids:
                    self._buffer.relocate(arrival)
                else:
                    self._buffer.add(arrival, self._clock())
            self._read[record.partition] = max(self._read.get(record.partition, 0), record.offset + 1)
        self._in_hand = []

    def _parse(self, record: Message) -> Trajectory | None:
        try:
            return Trajectory.model_validate_json(record.value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "message"
            reason = f"not a trajectory: {field}: {first['msg']}"
            logger.warning("%s/%d@%d is buried: %s", record.topic, record.partition, record.offset, reason)
            self._bury(record, reason)
            return None
