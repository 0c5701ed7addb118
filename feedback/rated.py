"""Which trajectories a feedback is part of: those made of the answers that it rated."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from feedback.database import chunked
from feedback.tables import generations


def find_rated(connection: Connection, rows: Sequence[Any]) -> set[str]:
    """The trajectories whose rewards these rows of `feedback`, all with the status `used`, are part of."""
    found: set[str] = set()
    columns = sa.select(generations.c.trajectory_id, generations.c.inference_id, generations.c.choice_index)
    rated = {(row.inference_id, row.choice_index) for row in rows if row.inference_id is not None}
    for part in chunked({inference_id for inference_id, _ in rated}):
        for row in connection.execute(columns.where(generations.c.inference_id.in_(part))):
            if row.trajectory_id is not None and (row.inference_id, row.choice_index) in rated:
                found.add(row.trajectory_id)
    for row in rows:
        if row.episode_id is not None:
            mine = generations.c.api_key_id == row.owner, generations.c.episode_id == row.episode_id
            # A turn that followed is a new matter (`feedback.joining.names`).
            before = generations.c.created_at <= row.received_at
            query = sa.select(generations.c.trajectory_id).where(*mine, generations.c.state == "released", before)
            found |= {name for name in connection.scalars(query) if name is not None}
    return found
