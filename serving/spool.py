"""From the capture to the log, by way of the disk: an answer never waits for the log, and the log may be away.

`put` only appends to a queue in memory. One thread writes the queue to disk, another sends what is on disk and moves
a cursor. So what was spooled outlives a killed process, is sent when the log is back, and is sent again when the log
was emptied (`EventLog.identity` changed), as far back as `keep_seconds`. Consumers are idempotent by key.
"""

import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, Field, ValidationError

from serving.segments import Position, Segments

logger = logging.getLogger(__name__)

CURSOR = "cursor.json"


class EventLog(Protocol):
    """What the spool needs of the log."""

    def send(self, topic: str, events: Sequence[tuple[str, bytes]]) -> Sequence[tuple[int, int]]:
        """Append (key, value) events; returns once all are acknowledged."""
        ...

    def identity(self, topic: str) -> str:
        """Changes exactly when the topic lost what it held."""
        ...


@dataclass(slots=True)
class SpoolCounts:
    """Since the process started."""

    spooled: int = 0
    sent: int = 0
    dropped: int = 0
    """Lost: the queue was full because the disk did not take it, or `spool_mib` was reached while the log was away."""
    refused: int = 0
    """The log can never take them (too large); kept beside the spool in ``refused.jsonl``."""
    republished: int = 0
    """How often the log was found emptied and the last minutes were sent again."""


class _State(BaseModel):
    """The cursor: what lies before it was sent to the log of this `identity`. ``cursor.json``."""

    segment: Annotated[int, Field(ge=0)]
    offset: Annotated[int, Field(ge=0)]
    identity: str | None = None


def claim_slot(folder: Path) -> tuple[int, Any]:
    """The lowest number whose folder no living process holds, and its lock: held until closed, or the process dies.

    A replica that starts again after a crash so finds what it had spooled.
    """
    number = 0
    while True:
        path = folder / f"slot-{number}"
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            number += 1
            continue
        return number, lock


class Spool:
    """One topic's way out of one process. `put` from any thread; `start` and `close` once each."""

    def __init__(
        self,
        folder: Path,
        log: EventLog,
        topic: str,
        *,
        unavailable: type[Exception] | tuple[type[Exception], ...],
        too_large: type[Exception] | tuple[type[Exception], ...] = (),
        queue: int = 4096,
        max_bytes: int = 512 << 20,
        keep_seconds: float = 300.0,
        batch_records: int = 256,
        batch_bytes: int = 1 << 20,
        identity_seconds: float = 2.0,
        retry_seconds: tuple[float, float] = (0.1, 5.0),
        clock: Callable[[], float] = time.time,
        held: Any = None,
    ) -> None:
        """`held`: whatever must live as long as the spool does (the lock of its slot)."""
        self._held = held
        self.counts = SpoolCounts()
        self.log_available = True
        self._log = log
        self._topic = topic
        self._unavailable = unavailable
        self._too_large = too_large
        self._limit = queue
        self._max_bytes = max_bytes
        self._keep_seconds = keep_seconds
        self._batch = (batch_records, batch_bytes)
        self._identity_seconds = identity_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._queue: deque[tuple[str, bytes]] = deque()
        self._filled = threading.Event()
        self._written = threading.Event()
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._folder = folder
        self._segments = Segments(folder)
        self._state = self._load_state()
        self._cursor_kept = True
        self._checked_at = float("-inf")
        self._threads = [
            threading.Thread(target=self._write_loop, name=f"spool-write-{topic}", daemon=True),
            threading.Thread(target=self._send_loop, name=f"spool-send-{topic}", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, key: str, value: bytes) -> None:
        """Take one event. Never blocks; what does not fit is counted as dropped."""
        if len(self._queue) >= self._limit:
            self.counts.dropped += 1
            return
        self._queue.append((key, value))
        self._filled.set()

    @property
    def waiting_bytes(self) -> int:
        """Bytes on disk, sent ones that are kept for a while included."""
        return self._segments.size

    @property
    def unsent_bytes(self) -> int:
        """Bytes on disk that the log has not taken yet."""
        return self._segments.size_after(self._cursor)

    def close(self, seconds: float = 5.0) -> bool:
        """Write everything to disk, send what can be sent in `seconds`. True when all is sent."""
        self._stopping.set()
        self._filled.set()
        self._threads[0].join(seconds)
        self._written.set()
        sent = self._drained.wait(seconds)
        self._threads[1].join(1.0)
        return sent

    # --- writing to disk ---------------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        wait = 0.0
        while True:
            self._filled.wait()
            self._filled.clear()
            while self._queue:
                records = list(self._queue)
                try:
                    self._segments.append(records, self._clock())
                except OSError as error:
                    if not wait:
                        logger.error("the spool %s cannot be written: %s", self._folder, error)
                    if self._stopping.is_set():
                        return
                    wait = min(max(2 * wait, 0.1), 5.0)
                    time.sleep(wait)
                    continue
                wait = 0.0
                for _ in records:
                    self._queue.popleft()
                self.counts.spooled += len(records)
                self._written.set()
            if self._stopping.is_set():
                return

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send_loop(self) -> None:
        wait = 0.0
        while True:
            self._written.clear()
            try:
                progressed = self._send_some()
                self.log_available, wait = True, 0.0
            except self._unavailable as error:
                progressed, wait = False, self._backoff(wait, error)
            except Exception as error:
                logger.exception("sending to %s failed", self._topic)
                progressed, wait = False, self._backoff(wait, error)
            if self._stopping.is_set():
                if wait:
                    return
                if not progressed and not self._threads[0].is_alive():
                    self._drained.set()
                    return
            if wait:
                self._stopping.wait(wait)
            elif not progressed:
                self._written.wait(self._identity_seconds)

    def _backoff(self, wait: float, error: Exception) -> float:
        if self.log_available:
            logger.warning("generations stay on disk while the log is away: %s", error)
        self.log_available = False
        self._checked_at = float("-inf")
        self._keep_in_bounds()
        first, longest = self._retry_seconds
        return min(max(2 * wait, first), longest)

    def _send_some(self) -> bool:
        """Send one batch. False when there was nothing to send. Raises what the log raises."""
        self._follow_log()
        batch = self._segments.read(self._cursor, records=self._batch[0], size=self._batch[1])
        if not batch:
            self._keep_in_bounds()
            return False
        try:
            self._log.send(self._topic, [(stored.key, stored.value) for stored in batch])
        except self._too_large:
            self._send_one_by_one([(stored.key, stored.value) for stored in batch])
        self.counts.sent += len(batch)
        self._move(batch[-1].after)
        self._keep_in_bounds()
        return True

    def _send_one_by_one(self, events: Sequence[tuple[str, bytes]]) -> None:
        for key, value in events:
            try:
                self._log.send(self._topic, [(key, value)])
            except self._too_large as error:
                self.counts.refused += 1
                self.counts.sent -= 1
                logger.error("the log refuses generation %s for good: %s", key, error)
                with (self._folder / "refused.jsonl").open("ab") as file:
                    file.write(value + b"\n")

    def _follow_log(self) -> None:
        """Go back as far as records are kept when the log lost what it held."""
        if time.monotonic() - self._checked_at < self._identity_seconds:
            return
        identity = self._log.identity(self._topic)
        self._checked_at = time.monotonic()
        if identity == self._state.identity:
            return
        if self._state.identity is not None:
            logger.warning("the log was emptied; sending the last %.0f s again", self._keep_seconds)
            self.counts.republished += 1
            since = self._segments.first_since(self._kept_since)
            self._state.segment, self._state.offset = min(since, self._cursor)
        self._state.identity = identity
        self._save_state()

    def _keep_in_bounds(self) -> None:
        self._segments.remove_before(self._cursor, self._kept_since)
        while self._segments.size > self._max_bytes:
            before = self._segments.size
            self.counts.dropped += self._segments.remove_oldest(self._cursor)
            if self._segments.size == before:
                return
            if self._segments.start > self._cursor:
                self._move(self._segments.start)

    @property
    def _kept_since(self) -> float:
        """From the newest record back, not from now: after a pause of the whole service all records are old."""
        return min(self._clock(), self._segments.newest_at) - self._keep_seconds

    @property
    def _cursor(self) -> Position:
        return Position(self._state.segment, self._state.offset)

    def _move(self, position: Position) -> None:
        self._state.segment, self._state.offset = position
        self._save_state()

    def _load_state(self) -> _State:
        """Where to go on. Without a cursor that makes sense everything on disk is sent again, and nothing is lost."""
        start, end = self._segments.start, self._segments.end
        path = self._folder / CURSOR
        try:
            state = _State.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return _State(segment=start.segment, offset=start.offset)
        except (OSError, ValidationError) as error:
            logger.error("%s cannot be used, all that is spooled is sent again: %s", path, type(error).__name__)
            return _State(segment=start.segment, offset=start.offset)
        if start <= Position(state.segment, state.offset) <= end:
            return state
        # Behind the start: what it points at is gone. Behind the end: a power failure took the records that it counted,
        # and what is spooled from now on would never be sent.
        return _State(segment=start.segment, offset=start.offset, identity=state.identity)

    def _save_state(self) -> None:
        """A cursor that the disk does not take is an older one after a restart: some records are then sent twice."""
        draft = self._folder / f"{CURSOR}.draft"
        try:
            with draft.open("w") as file:
                file.write(self._state.model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._folder / CURSOR)
        except OSError as error:
            if self._cursor_kept:
                logger.error("the cursor in %s cannot be written: %s", self._folder, error)
            self._cursor_kept = False
        else:
            self._cursor_kept = True
