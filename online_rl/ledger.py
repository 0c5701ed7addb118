"""What the learner writes to SQL beside versions: updates, what was trained on, what was dropped, drift.

Every write may be repeated: it then changes nothing. Others write here too: what a user had erased is marked as dropped
(`stop_training`), and the loop asks for such marks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from online_rl.drift_events import Recovery, Shift
from online_rl.reaction import Reaction
from online_rl.tables import drift_events, drops, trainings, updates

IN_LIST = 500
"""Values in one IN list: a statement has a limited number of parameters (`feedback.database.IN_LIST`)."""
ERASED = "erased"
"""Why a trajectory does not train whose user had it erased."""


def stop_training(connection: sa.Connection, trajectory_ids: Sequence[str], at: float) -> set[str]:
    """In the caller's transaction, have none of these train from now on; returns those that had not trained yet.

    One that is in the learner's hands at this moment is let go of, unless its update's checkpoint is being written;
    then it trained, and the record says so in place of this mark (`Ledger.record_update`).
    """
    if not trajectory_ids:
        return set()
    if connection.dialect.name == "postgresql":
        # Otherwise an update that is being recorded now would not be seen here, nor this mark there.
        connection.exec_driver_sql("LOCK TABLE trainings IN SHARE ROW EXCLUSIVE MODE")
    waiting = set(trajectory_ids) - _present(connection, trainings, trajectory_ids)
    waiting -= _present(connection, drops, sorted(waiting))
    rows = [{"trajectory_id": name, "reason": ERASED, "dropped_at": at} for name in sorted(waiting)]
    _insert_missing(connection, drops, rows)
    return waiting


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
            _unmark_erased(connection, trajectory_ids)

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
        # The learner and who erases may come at the same moment: the first mark stays.
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        connection.execute(insert(table).on_conflict_do_nothing(), missing)


def _unmark_erased(connection: sa.Connection, trajectory_ids: Sequence[str]) -> None:
    """They trained: erased while their update's checkpoint was written, they are in the weights, and that must show."""
    for start in range(0, len(trajectory_ids), IN_LIST):
        part = trajectory_ids[start : start + IN_LIST]
        marks = drops.c.trajectory_id.in_(part), drops.c.reason == ERASED
        connection.execute(sa.delete(drops).where(*marks))
