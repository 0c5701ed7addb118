"""Writing down what was decided about trajectories, many in a few statements."""

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from feedback.assembly import Draft, group_of
from feedback.database import chunked
from feedback.joining import Release, episode_of
from feedback.outbox import enqueue
from feedback.schemas import TRAJECTORIES_TOPIC, Trajectory
from feedback.tables import feedback, generations, trajectories

_UNUSED_YET = ("new", "waiting", "orphaned", "joined")


class ReleasedElsewhere(Exception):
    """Another assembler released the same generations meanwhile; this transaction must be undone."""


@dataclass(slots=True)
class Decisions:
    """What one transaction decided. Rows are `seq` of generations."""

    released: list[tuple[Trajectory, Sequence[int]]] = field(default_factory=list)
    dropped: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Reason → rows."""
    postponed: defaultdict[float, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Until when → rows that are due and have to wait on: an earlier turn of a trajectory is due when its last is."""
    used: list[str] = field(default_factory=list)
    """Feedback ids that are part of a released trajectory's reward."""


def write_decisions(connection: Connection, decisions: Decisions, now: float) -> None:
    """Raises ReleasedElsewhere where a generation was not open any more."""
    for until, rows in decisions.postponed.items():
        for part in chunked(rows):
            connection.execute(sa.update(generations).where(generations.c.seq.in_(part)).values(due_at=until))
    for reason, rows in decisions.dropped.items():
        _close(connection, rows, state="dropped", drop_reason=reason)
    if not decisions.released:
        return
    _close(connection, [row for _, rows in decisions.released for row in rows], state="released")
    named = [{"row": row, "name": trajectory.trajectory_id} for trajectory, rows in decisions.released for row in rows]
    query = sa.update(generations).where(generations.c.seq == sa.bindparam("row"))
    connection.execute(query.values(trajectory_id=sa.bindparam("name")), named)
    connection.execute(sa.insert(trajectories), [_row(trajectory) for trajectory, _ in decisions.released])
    enqueue(connection, TRAJECTORIES_TOPIC, [one.trajectory_id for one, _ in decisions.released], now)
    for part in chunked(decisions.used):
        about = feedback.c.feedback_id.in_(part), feedback.c.status.in_(_UNUSED_YET)
        connection.execute(sa.update(feedback).where(*about).values(status="used"))


def make_trajectory(draft: Draft, release: Release, now: float) -> Trajectory:
    """The event. Everything that belongs to the request is taken from the draft's first generation."""
    first = draft.generations[0]
    group_id, group_size = group_of(first)
    return Trajectory(
        trajectory_id=draft.trajectory_id,
        episode_id=episode_of(first),
        inference_ids=tuple(dict.fromkeys(generation.inference_id for generation in draft.generations)),
        token_ids=draft.token_ids,
        action_mask=draft.action_mask,
        behavior_logprobs=draft.behavior_logprobs,
        spans=draft.spans,
        reward=release.reward,
        metrics=dict(release.metrics),
        group_id=group_id,
        group_size=group_size,
        greedy=draft.greedy,
        structured=draft.structured,
        api_key_id=first.api_key_id,
        user_id=first.user_id,
        tags={name: value for generation in draft.generations for name, value in generation.tags.items()},
        generated_at=draft.generated_at,
        rated_at=release.rated_at,
        released_at=now,
    )


def _row(trajectory: Trajectory) -> dict[str, Any]:
    same = {"trajectory_id", "api_key_id", "episode_id", "user_id", "reward", "metrics"}
    return {
        **trajectory.model_dump(include=same | {"generated_at", "rated_at", "released_at"}),
        "tokens": len(trajectory.token_ids),
        "action_tokens": sum(trajectory.action_mask),
        "oldest_version": trajectory.oldest_version,
        "event": zlib.compress(trajectory.model_dump_json().encode(), 1),
    }


def _close(connection: Connection, rows: Sequence[int], **values: Any) -> None:
    # As an expression, so that SQLite goes by the few rows that are named and not by all that are open.
    is_open = sa.func.coalesce(generations.c.state, "") == "open"
    for part in chunked(rows):
        query = sa.update(generations).where(generations.c.seq.in_(part), is_open)
        if connection.execute(query.values(**values)).rowcount != len(part):
            raise ReleasedElsewhere("another assembler works on the same database; run one")
