"""How fast it goes now: answers and feedback a minute, how long an answer takes, how long until it is rated."""

import statistics
from collections.abc import Sequence

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from feedback.tables import feedback, generations, trajectories

NEWEST = 128
"""Rows that are looked at: enough for a 95th percentile, and the same work after a day and a year."""
WINDOW_S = 300.0


class Pace(BaseModel):
    """Of the last five minutes, and of the newest 128 where there were more. None where nothing came in that time."""

    model_config = ConfigDict(frozen=True)

    answers_per_minute: float = 0.0
    feedback_per_minute: float = 0.0
    latency_p50_s: float | None = None
    """From request to last token."""
    latency_p95_s: float | None = None
    rated_after_p50_s: float | None = None
    """From an answer's last token to its feedback."""


def read_pace(connection: Connection, now: float) -> Pace:
    """The pace at `now` (Unix seconds). Raises sqlalchemy's errors."""
    answers = _newest(connection, generations, generations.c.created_at, generations.c.finished_at)
    took = [end - start for start, end in answers if end >= now - WINDOW_S]
    rated = _newest(connection, trajectories, trajectories.c.generated_at, trajectories.c.rated_at)
    waited = [end - start for start, end in rated if end >= now - WINDOW_S]
    said = [at for (at,) in _newest(connection, feedback, feedback.c.received_at)]
    return Pace(
        answers_per_minute=per_minute([end for _, end in answers], now),
        feedback_per_minute=per_minute(said, now),
        latency_p50_s=statistics.median(took) if took else None,
        latency_p95_s=percentile_95(took) if took else None,
        rated_after_p50_s=statistics.median(waited) if waited else None,
    )


def per_minute(times: Sequence[float], now: float) -> float:
    """Of `times` (Unix seconds) those of the window; where all are, there were more, and they set the length."""
    recent = [at for at in times if at >= now - WINDOW_S]
    if len(recent) < NEWEST or len(recent) < len(times):
        return len(recent) * 60.0 / WINDOW_S
    return (len(recent) - 1) * 60.0 / max(max(recent) - min(recent), 1e-3)


def percentile_95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def _newest(connection: Connection, table: sa.Table, *columns: sa.Column[float]) -> list[tuple[float, ...]]:
    # By the primary key and not by time, which needs no index and no sorting.
    newest = sa.select(sa.func.max(table.c.seq)).scalar_subquery()
    return [tuple(row) for row in connection.execute(sa.select(*columns).where(table.c.seq > newest - NEWEST))]
