"""A replica's row in SQL: what is wanted of it, and what it reports."""

import time
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from serving.tables import replicas


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Totals since the slot first served."""

    requests: int = 0
    failed_requests: int = 0
    captured: int = 0
    capture_failures: int = 0
    spool_dropped: int = 0

    def plus(self, other: "ReplicaCounts") -> "ReplicaCounts":
        return ReplicaCounts(
            self.requests + other.requests,
            self.failed_requests + other.failed_requests,
            self.captured + other.captured,
            self.capture_failures + other.capture_failures,
            self.spool_dropped + other.spool_dropped,
        )


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica says of itself."""

    state: str
    actual_version: int | None = None
    proof: dict[str, Any] = field(default_factory=dict)
    refused_version: int | None = None
    detail: str = ""
    counts: ReplicaCounts = ReplicaCounts()


class ReplicaStore:
    """The row of one replica slot. Blocking: call it in a thread. Every method raises what SQLAlchemy raises."""

    def __init__(self, engine: sa.Engine, replica_id: str) -> None:
        self._engine = engine
        self._reader = engine.execution_options(online_rl_read_only=True)
        self._id = replica_id
        self._before = ReplicaCounts()

    def register(self, assigned_version: int) -> None:
        """Make or take over the row. An assignment that is there stays, and the counters go on from what they were."""
        now = time.time()
        fresh = {"state": "starting", "actual_version": None, "heartbeat_at": now, "started_at": now}
        fresh |= {"proof": {}, "refused_version": None, "detail": ""}
        with self._engine.begin() as connection:
            row = connection.execute(sa.select(replicas).where(replicas.c.replica_id == self._id)).one_or_none()
            if row is None:
                counts = dict.fromkeys(ReplicaCounts.__slots__, 0)
                connection.execute(
                    sa.insert(replicas).values(
                        replica_id=self._id, assigned_version=assigned_version, **fresh, **counts
                    )
                )
                return
            connection.execute(sa.update(replicas).where(replicas.c.replica_id == self._id).values(fresh))
        self._before = ReplicaCounts(**{name: row._mapping[name] for name in ReplicaCounts.__slots__})

    def assigned_version(self) -> int:
        with self._reader.connect() as connection:
            found = connection.scalar(sa.select(replicas.c.assigned_version).where(replicas.c.replica_id == self._id))
        if found is None:
            raise LookupError(f"the row of replica {self._id} is gone")
        return found

    def report(self, report: ReplicaReport) -> None:
        counts = report.counts.plus(self._before)
        values: dict[str, Any] = {name: getattr(counts, name) for name in ReplicaCounts.__slots__}
        values |= {
            "state": report.state,
            "actual_version": report.actual_version,
            "proof": report.proof,
            "refused_version": report.refused_version,
            "detail": report.detail,
            "heartbeat_at": time.time(),
        }
        with self._engine.begin() as connection:
            connection.execute(sa.update(replicas).where(replicas.c.replica_id == self._id).values(values))
