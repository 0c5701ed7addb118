"""What the learner writes to SQL beside versions: updates, what was trained on, what was dropped, drift.

Every write may be repeated: it then changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from online_rl.drift_events import Recovery, Shift
from online_rl.reaction import Reaction
from online_rl.tables import drift_events, drops, trainings, updates

IN_LIST = 500
"""Values in one IN list: a statement has a limited number of parameters (`feedback.database.IN_LIST`)."""


class Ledger:
    """Raises what SQLAlchemy raises where the database does not answer."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        # See `feedback.database.read_only`: on SQLite, reading then takes no write lock.
        self._reader = engine.execution_options(online_rl_read_only=True)

    def handled(self, trajectory_ids: Sequence[str]) -> set[str]:
        """Which of these were trained on or dropped already."""
        with self._reader.connect() as connection:
            return {name for table in (trainings, drops) for name in _present(connection, table, trajectory_ids)}

    def record_update(
        self, update: int, version: int, trajectory_ids: Sequence[str], metrics: Mapping[str, float], at: float
    ) -> None:
        """The row of an update and the marks of its trajectories, in one transaction."""
        with self._engine.begin() as connection:
            done = connection.execute(sa.select(updates.c.update).where(updates.c.update == update)).first()
            values = {"version": version, "trajectories": len(trajectory_ids), "metrics": dict(metrics)}
            if done is None:
                connection.execute(sa.insert(updates).values(update=update, created_at=at, **values))
            else:
                # After a damaged checkpoint an update number comes again, with other trajectories.
                connection.execute(sa.update(updates).where(updates.c.update == update).values(**values))
            rows = [{"trajectory_id": name, "update": update, "trained_at": at} for name in trajectory_ids]
            _insert_missing(connection, trainings, rows)

    def record_drops(self, reasons: Mapping[str, str], at: float) -> None:
        """Trajectory id → reason."""
        if reasons:
            rows = [{"trajectory_id": name, "reason": reason, "dropped_at": at} for name, reason in reasons.items()]
            with self._engine.begin() as connection:
                _insert_missing(connection, drops, rows)

    def record_drift(self, event: Shift | Recovery | Reaction, *, version: int, update: int) -> None:
        """A shift is a new row; a recovery and a reaction, begun or ended, complete the row of their shift."""
        cohort = "" if isinstance(event, Reaction) else event.cohort
        this = sa.and_(
            drift_events.c.stream == event.stream,
            drift_events.c.cohort == cohort,
            drift_events.c.trajectories == event.trajectories,
        )
        with self._engine.begin() as connection:
            if isinstance(event, Recovery):
                found = {
                    "recovered_at": event.recovered_at,
                    "recovered_after": event.recovered_after,
                    "recovered_seconds": event.recovered_seconds,
                }
                connection.execute(sa.update(drift_events).where(this).values(found))
            elif isinstance(event, Reaction):
                done = event.model_dump(exclude={"kind", "stream", "trajectories"})
                connection.execute(sa.update(drift_events).where(this).values(reaction=done))
            elif connection.execute(sa.select(drift_events.c.id).where(this)).first() is None:
                connection.execute(
                    sa.insert(drift_events).values(
                        stream=event.stream,
                        cohort=event.cohort,
                        cause=event.cause,
                        detected_at=event.detected_at,
                        version=version,
                        update=update,
                        trajectories=event.trajectories,
                        before=event.before,
                        after=event.after,
                        evidence=dict(event.evidence),
                    )
                )


def _present(connection: sa.Connection, table: sa.Table, trajectory_ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(trajectory_ids), IN_LIST):
        part = trajectory_ids[start : start + IN_LIST]
        found.update(connection.scalars(sa.select(table.c.trajectory_id).where(table.c.trajectory_id.in_(part))))
    return found


def _insert_missing(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    present = _present(connection, table, [row["trajectory_id"] for row in rows])
    missing = [row for row in rows if row["trajectory_id"] not in present]
    if missing:
        connection.execute(sa.insert(table), missing)
