"""What became of every feedback that was acknowledged: read from the database after the run. Counts, no judgement."""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import chunked, read_only
from feedback.tables import feedback, generations, trajectories
from online_rl.tables import drops, trainings, updates

STORED = ("new", "waiting", "joined", "unused", "refused", "quarantined", "vetted")


@dataclass(slots=True)
class Acknowledged:
    """One feedback as its client knows it: every id that its idempotency key was answered with."""

    key: str
    inference_id: str
    feedback_ids: list[str] = field(default_factory=list)
    retracted: bool = False
    """Whether its retraction was acknowledged."""


@dataclass(slots=True)
class Accounts:
    acknowledged: int
    lost: list[str]
    """Keys whose feedback is not stored, or whose retraction is not, or that is said to be used and is in nothing."""
    duplicated: list[str]
    """Keys with two feedback, and inferences in two trajectories."""
    trained_twice: int
    """Places in the batches of all updates beyond the trajectories that trained."""
    fates: dict[str, int]
    """stored, trained, dropped, late, retracted, orphaned → how many."""
    dropped: dict[str, int]
    """Why trajectories did not train → how many of the acknowledged feedback were part of them."""


def settle_accounts(engine: Engine, acknowledged: Sequence[Acknowledged]) -> Accounts:
    with read_only(engine).connect() as connection:
        rows = _rows(connection, [name for one in acknowledged for name in one.feedback_ids])
        made = _trajectories(connection, {one.inference_id for one in acknowledged})
        fates: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        lost: list[str] = []
        duplicated = [one.key for one in acknowledged if len(set(one.feedback_ids)) > 1]
        for one in acknowledged:
            fate = find_fate(one, rows.get(one.feedback_ids[0]), made.get(one.inference_id))
            if fate is None:
                lost.append(one.key)
            else:
                name, _, reason = fate.partition(":")
                fates[name] += 1
                if reason:
                    reasons[reason] += 1
        duplicated += _keys_with_two(connection, acknowledged) + _inferences_in_two(connection)
        return Accounts(
            acknowledged=len(acknowledged),
            lost=lost,
            duplicated=duplicated,
            trained_twice=_trained_twice(connection),
            fates=dict(sorted(fates.items())),
            dropped=dict(sorted(reasons.items())),
        )


def find_fate(one: Acknowledged, row: Any | None, became: str | None) -> str | None:
    """What became of it; None where it is lost. `row`: its feedback; `became`: of its answer's trajectory. Pure."""
    if row is None or (one.retracted and row.retracted_at is None):
        return None
    if row.status == "used":
        return became
    if row.retracted_at is not None:
        return "retracted"
    if row.status in ("late", "orphaned"):
        return row.status
    return "stored" if row.status in STORED else None


def _rows(connection: Connection, names: Iterable[str]) -> dict[str, Any]:
    columns = sa.select(feedback.c.feedback_id, feedback.c.status, feedback.c.retracted_at)
    return {
        row.feedback_id: row
        for part in chunked(names)
        for row in connection.execute(columns.where(feedback.c.feedback_id.in_(part)))
    }


def _trajectories(connection: Connection, inference_ids: Iterable[str]) -> dict[str, str]:
    """Inference → ``trained``, ``stored`` (its trajectory waits for the learner) or ``dropped:REASON``."""
    found: dict[str, str] = {}
    columns = sa.select(generations.c.inference_id, trajectories.c.trajectory_id, trainings.c.update, drops.c.reason)
    same = trajectories.c.trajectory_id
    joined = (
        generations.join(trajectories, generations.c.trajectory_id == same)
        .outerjoin(trainings, trainings.c.trajectory_id == same)
        .outerjoin(drops, drops.c.trajectory_id == same)
    )
    for part in chunked(inference_ids):
        for row in connection.execute(columns.select_from(joined).where(generations.c.inference_id.in_(part))):
            found[row.inference_id] = (
                "trained" if row.update is not None else "stored" if row.reason is None else f"dropped:{row.reason}"
            )
    return found


def _keys_with_two(connection: Connection, acknowledged: Sequence[Acknowledged]) -> list[str]:
    """Keys under which another feedback is stored than the one that was acknowledged."""
    said = {one.key: set(one.feedback_ids) for one in acknowledged}
    columns = sa.select(feedback.c.idempotency_key, feedback.c.feedback_id)
    return [
        row.idempotency_key
        for part in chunked(said)
        for row in connection.execute(columns.where(feedback.c.idempotency_key.in_(part)))
        if row.feedback_id not in said[row.idempotency_key]
    ]


def _inferences_in_two(connection: Connection) -> list[str]:
    """Every inference of the run is one answer, so it is in one trajectory at most."""
    seen: Counter[str] = Counter()
    for event in connection.scalars(sa.select(trajectories.c.event).where(trajectories.c.erased_at.is_(None))):
        seen.update(json.loads(zlib.decompress(event))["inference_ids"])
    return [name for name, number in seen.items() if number > 1]


def _trained_twice(connection: Connection) -> int:
    places = connection.scalar(sa.select(sa.func.sum(updates.c.trajectories))) or 0
    trained = connection.scalar(sa.select(sa.func.count()).select_from(trainings)) or 0
    return int(places) - trained


def unsettled(engine: Engine) -> int:
    """Feedback that is not given its place yet."""
    with read_only(engine).connect() as connection:
        query = sa.select(sa.func.count()).where(feedback.c.status.in_(("new", "waiting")))
        return connection.scalar(query) or 0


def describe(accounts: Accounts) -> Mapping[str, Any]:
    """The figures as the benchmark's JSON has them."""
    return {
        "lost": len(accounts.lost),
        "orphaned": accounts.fates.get("orphaned", 0),
        "duplicated": len(accounts.duplicated),
        "trained_twice": accounts.trained_twice,
        "acknowledged": accounts.acknowledged,
        "fates": accounts.fates,
        "dropped": accounts.dropped,
    }
