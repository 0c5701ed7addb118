"""Feedback whose value is an outlier: listed, and released by an operator."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.database import chunked, read_only
from feedback.outliers import QUARANTINED, VETTED
from feedback.tables import feedback

_SHOWN = ("feedback_id", "metric_name", "value", "user_id", "owner", "inference_id", "episode_id", "received_at")


def list_quarantined(engine: Engine, limit: int = 100) -> list[dict[str, Any]]:
    """The newest, without comments."""
    query = sa.select(*(feedback.c[name] for name in _SHOWN)).where(feedback.c.status == QUARANTINED)
    with read_only(engine).connect() as connection:
        return [dict(row) for row in connection.execute(query.order_by(feedback.c.seq.desc()).limit(limit)).mappings()]


def release_quarantined(engine: Engine, feedback_ids: Sequence[str] | None) -> int:
    """Have these (None: all) joined as if they had just come; returns how many were in quarantine."""
    query = sa.update(feedback).where(feedback.c.status == QUARANTINED).values(status=VETTED)
    with engine.begin() as connection:
        if feedback_ids is None:
            return connection.execute(query).rowcount
        return sum(
            connection.execute(query.where(feedback.c.feedback_id.in_(part))).rowcount for part in chunked(feedback_ids)
        )
