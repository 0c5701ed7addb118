"""One replica's loop: sees which version is assigned to it, swaps itself, proves itself, and says so.

The loop never stops an answer: when the database is away it goes on serving the version it has.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from online_rl.schemas import PolicyVersion
from serving.artifact import Artifact, ArtifactRefused
from serving.replica_store import ReplicaCounts, ReplicaReport
from serving.swap import SwapFailed, SwapReport

logger = logging.getLogger(__name__)


class Swap(Protocol):
    @property
    def version(self) -> int | None: ...
    async def swap(self, target: Artifact) -> SwapReport: ...


class Versions(Protocol):
    def get(self, version: int) -> PolicyVersion: ...
    def live(self) -> PolicyVersion | None: ...


class Assignments(Protocol):
    def register(self, assigned_version: int) -> None: ...
    def assigned_version(self) -> int: ...
    def report(self, report: ReplicaReport) -> None: ...


class Replica:
    """Brings assigned versions into the engine."""

    def __init__(
        self,
        swap: Swap,
        versions: Versions,
        assignments: Assignments,
        *,
        verify: Callable[[PolicyVersion], Artifact],
        counts: Callable[[], ReplicaCounts],
        unavailable: tuple[type[Exception], ...],
        poll_seconds: float,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self._swap = swap
        self._versions = versions
        self._assignments = assignments
        self._verify = verify
        self._counts = counts
        self._unavailable = unavailable
        self._poll_seconds = poll_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._report = ReplicaReport("starting")
        self._reported_at = float("-inf")
        self._delivery: asyncio.Task[None] | None = None
        self._database_away = False
        self.unusable: str | None = None
        """Why the replica must be started again; None while it is fine."""
        self.swaps = 0
        self.last_swap_seconds = 0.0

    async def load_first(self) -> None:
        """Load the live version before the first request. Raises SwapFailed, ArtifactRefused or ReplicaUnusable."""
        live = await asyncio.to_thread(self._versions.live)
        if live is None:
            raise ArtifactRefused("no version is live; register the base model first (`online-rl db upgrade`, `up`)")
        await asyncio.to_thread(self._assignments.register, live.version)
        artifact = await asyncio.to_thread(self._verify, live)
        done = await self._swap.swap(artifact)
        await self._say(replace(self._report, state="serving", actual_version=live.version, proof=done.as_json()))

    async def run(self) -> None:
        """Until cancelled, or until the replica is unusable."""
        while self.unusable is None:
            try:
                await self._turn()
                self._database_away = False
            except self._unavailable as error:
                if not self._database_away:
                    logger.warning("the database is away; version %s goes on answering: %s", self._swap.version, error)
                self._database_away = True
            except LookupError:
                logger.exception("what is assigned cannot be read")
            await asyncio.sleep(self._poll_seconds)

    async def _turn(self) -> None:
        assigned = await asyncio.to_thread(self._assignments.assigned_version)
        busy = self._delivery is not None and not self._delivery.done()
        if not busy and assigned != self._swap.version and assigned != self._report.refused_version:
            wanted = await asyncio.to_thread(self._versions.get, assigned)
            await self._say(replace(self._report, state="swapping", refused_version=None, detail=""))
            self._delivery = asyncio.create_task(self._deliver(wanted))
        elif not busy and assigned == self._swap.version and self._report.refused_version is not None:
            await self._say(replace(self._report, refused_version=None, detail=""))
        elif time.monotonic() - self._reported_at >= self._heartbeat_seconds:
            await self._say(self._report)

    async def _deliver(self, wanted: PolicyVersion) -> None:
        try:
            artifact = await asyncio.to_thread(self._verify, wanted)
            done = await self._swap.swap(artifact)
        except (ArtifactRefused, SwapFailed, OSError) as error:
            logger.error("version %d was refused: %s", wanted.version, error)
            report = replace(self._report, state="serving", refused_version=wanted.version, detail=str(error))
        except Exception as error:  # ReplicaUnusable, or an engine that refuses a verb: what it serves is not known
            logger.exception("this replica must start again")
            self.unusable = str(error) or type(error).__name__
            report = replace(self._report, state="failed", actual_version=None, detail=self.unusable)
        else:
            logger.info("version %d answers after %.2f s", done.version, done.seconds)
            self.swaps += 1
            self.last_swap_seconds = done.seconds
            report = replace(
                self._report, state="serving", actual_version=done.version, proof=done.as_json(), detail=""
            )
        self._report = report
        try:
            await self._say(report)
        except self._unavailable:
            self._reported_at = float("-inf")  # the loop says it again when the database is back

    async def _say(self, report: ReplicaReport) -> None:
        self._report = report = replace(report, counts=self._counts())
        await asyncio.to_thread(self._assignments.report, report)
        self._reported_at = time.monotonic()
