"""How far each stage is behind the one before it: answers, feedback, the log, the learner, the weights."""

from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from feedback.tables import dead_letters, feedback, outbox, trajectories
from online_rl.tables import trainings
from serving.tables import replicas


class Flow(BaseModel):
    """Counts since the database was made; times are Unix seconds, None where nothing has happened yet."""

    model_config = ConfigDict(frozen=True)

    captured: int = 0
    """Generations that the replicas recorded."""
    capture_failures: int = 0
    spool_dropped: int = 0
    """Generations lost between a replica and the log: the spool was full, or the log refuses them."""
    last_feedback_at: float | None = None
    outbox_waiting: int = 0
    """Events committed and not on the log yet."""
    outbox_oldest_at: float | None = None
    """When the oldest of those was committed."""
    last_dead_letter_at: float | None = None
    last_update_at: float | None = None
    feedback_to_weights_s: float | None = None
    """From the feedback of the last update in the live version, its mean, to the version going live."""


def read_flow(connection: Connection, newest: sa.Row[Any] | None, live: sa.Row[Any] | None) -> Flow:
    """`newest`: the row of the newest update, `live`: that of the live version. Raises sqlalchemy's errors."""
    total = sa.func.sum
    counts = (replicas.c.captured, replicas.c.capture_failures, replicas.c.spool_dropped)
    sums = sa.select(total(counts[0]), total(counts[1]), total(counts[2]))
    captured, failures, dropped = connection.execute(sums).one()
    waiting = outbox.c.state == "waiting"
    oldest = sa.select(outbox.c.created_at).where(waiting).order_by(outbox.c.seq).limit(1)
    return Flow(
        captured=int(captured or 0),
        capture_failures=int(failures or 0),
        spool_dropped=int(dropped or 0),
        last_feedback_at=connection.scalar(sa.select(sa.func.max(feedback.c.received_at))),
        outbox_waiting=connection.scalar(sa.select(sa.func.count()).where(waiting)) or 0,
        outbox_oldest_at=connection.scalar(oldest),
        last_dead_letter_at=connection.scalar(sa.select(sa.func.max(dead_letters.c.created_at))),
        last_update_at=None if newest is None else newest.created_at,
        feedback_to_weights_s=None if live is None else _feedback_to_weights(connection, live),
    )


def _feedback_to_weights(connection: Connection, live: sa.Row[Any]) -> float | None:
    update = live.metrics.get("update")
    if update is None:
        return None
    rated = (
        sa.select(sa.func.avg(trajectories.c.rated_at))
        .join(trainings, trainings.c.trajectory_id == trajectories.c.trajectory_id)
        .where(trainings.c.update == int(update))
    )
    mean = connection.scalar(rated)
    return None if mean is None else live.changed_at - mean
