"""The learner of the running service, as its database tells of it: what it did, and how to hold it still.

While the plain server is under load the learner is stopped (SIGSTOP), so that plain's figures are those of a machine
that learns nothing, and what learning takes is charged to our service alone.
"""

import asyncio
import signal
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from benchmarks.serving.servers import send_signal
from feedback.database import open_database, read_only
from feedback.tables import trajectories
from online_rl import tables
from online_rl.schemas import BASE_VERSION, VersionState

SETTLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts since the service's first start."""

    updates: int
    swaps: int
    """Versions that were made live, the base not counted."""
    backlog: int
    """Trajectories that wait to be trained on."""


class Learner:
    """Of the service whose data are in the SQLite file `database`."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._engine = read_only(open_database(f"sqlite:///{database}"))
        self._held: int | None = None

    def read_progress(self) -> Progress:
        versions = tables.policy_versions.c
        answered = (VersionState.LIVE, VersionState.RETIRED, VersionState.ROLLED_BACK)
        with self._engine.connect() as connection:
            updates = connection.scalar(sa.select(sa.func.count()).select_from(tables.updates)) or 0
            swaps = connection.scalar(
                sa.select(sa.func.count()).where(versions.version != BASE_VERSION, versions.state.in_(answered))
            )
            released = connection.scalar(sa.select(sa.func.count()).select_from(trajectories)) or 0
            trained = connection.scalar(sa.select(sa.func.count()).select_from(tables.trainings)) or 0
            dropped = connection.scalar(sa.select(sa.func.count()).select_from(tables.drops)) or 0
        return Progress(updates, swaps or 0, max(0, released - trained - dropped))

    async def hold(self) -> None:
        """Stop the learner where it is, and wait until no version is on its way to the engine."""
        if self._held is not None:
            return
        while True:
            self._held = self._find_pid()
            send_signal(self._held, signal.SIGSTOP)
            if self._can_write():
                break
            self.release()  # it was stopped inside a transaction, and would keep all others out
            await asyncio.sleep(0.05)
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._count_candidates() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    def release(self) -> None:
        if self._held is not None:
            send_signal(self._held, signal.SIGCONT)
            self._held = None

    def close(self) -> None:
        self.release()
        self._engine.dispose()

    def _find_pid(self) -> int:
        with self._engine.connect() as connection:
            pid = connection.scalar(sa.select(tables.parts.c.pid).where(tables.parts.c.name == "learner"))
        if pid is None:
            raise RuntimeError("the service has no learner")
        return pid

    def _count_candidates(self) -> int:
        wanted = sa.select(sa.func.count()).where(tables.policy_versions.c.state == VersionState.CANDIDATE)
        with self._engine.connect() as connection:
            return connection.scalar(wanted) or 0

    def _can_write(self) -> bool:
        with closing(sqlite3.connect(self._database, timeout=0.2, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
        return True
