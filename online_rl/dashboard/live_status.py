"""One reader of the database for any number of open dashboards."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine

from online_rl.dashboard.alarms import find_alarms
from online_rl.dashboard.measured import Limits
from online_rl.dashboard.snapshot import read_snapshot
from online_rl.dashboard.status import Snapshot

MAX_AGE_S = 1.0


class StatusFeed:
    """The present snapshot, at most `max_age_s` old, read once however many ask."""

    def __init__(self, engine: Engine, limits: Limits, *, started_at: float, max_age_s: float = MAX_AGE_S) -> None:
        self._engine = engine
        self._limits = limits
        self._started_at = started_at
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._snapshot: Snapshot | None = None

    def read(self) -> Snapshot:
        """Blocks on the database where the last snapshot is too old. Raises sqlalchemy's errors."""
        with self._lock:
            if self._snapshot is None or time.monotonic() - self._read_at >= self._max_age_s:
                now = time.time()
                snapshot = read_snapshot(self._engine, self._started_at, now)
                alarms = find_alarms(snapshot.status, self._limits, now)
                self._snapshot = snapshot.model_copy(update={"alarms": alarms})
                self._read_at = time.monotonic()
            return self._snapshot

    async def follow(self) -> AsyncGenerator[Snapshot, None]:
        """The snapshot now, and again whenever it differs from the last one given."""
        last: Snapshot | None = None
        while True:
            snapshot = await run_in_threadpool(self.read)
            if last is None or _what_changes(snapshot) != _what_changes(last):
                last = snapshot
                yield snapshot
            await asyncio.sleep(self._max_age_s)


def _what_changes(snapshot: Snapshot) -> tuple[Snapshot, int]:
    """Everything but the clock, and of the clock a tick every five seconds."""
    return snapshot.model_copy(update={"status": snapshot.status.model_copy(update={"seconds": 0.0})}), int(
        snapshot.status.seconds // 5
    )
