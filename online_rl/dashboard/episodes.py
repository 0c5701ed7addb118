"""One trajectory as it was trained on: what was asked, answered and rated, token by token."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine

from feedback.database import read_only
from feedback.tables import feedback, trajectories
from online_rl.dashboard.lineage import NothingKnown
from online_rl.tables import drops, trainings


class TrajectorySummary(BaseModel):
    """A row of the list."""

    model_config = ConfigDict(frozen=True)

    trajectory_id: str
    reward: float
    tokens: int
    action_tokens: int
    oldest_version: int | None
    api_key_id: str
    released_at: float
    update: int | None
    """The update that trained on it."""
    dropped: str | None
    erased: bool


class Said(BaseModel):
    """One feedback on it."""

    model_config = ConfigDict(frozen=True)

    metric_name: str
    value: float
    comment: str | None
    tags: dict[str, Any]
    received_at: float


class TrajectoryRecord(TrajectorySummary):
    """The sequences are empty where the content was erased."""

    token_ids: list[int]
    action_mask: list[int]
    logprobs: list[float | None]
    """Behavior log-probability of each token, None of those that were not sampled."""
    versions: list[int | None]
    """The version that sampled each token."""
    metrics: dict[str, float]
    tags: dict[str, str]
    feedback: list[Said]


_COLUMNS = ("trajectory_id", "reward", "tokens", "action_tokens", "oldest_version", "api_key_id", "released_at")


def read_trajectories(
    engine: Engine, *, before: float | None, limit: int, worst: bool = False
) -> list[TrajectorySummary]:
    """The newest `limit` released before `before` (Unix seconds), newest first; `worst`: of the last 1000 those with
    the smallest reward, smallest first. Raises sqlalchemy's errors."""
    newest = _summaries().order_by(trajectories.c.seq.desc())
    if before is not None:
        newest = newest.where(trajectories.c.released_at < before)
    if worst:
        recent = newest.limit(1000).subquery()
        newest = sa.select(recent).order_by(recent.c.reward, recent.c.released_at.desc())
    with read_only(engine).connect() as connection:
        return [TrajectorySummary(**row._mapping) for row in connection.execute(newest.limit(limit))]


def read_trajectory(engine: Engine, name: str) -> TrajectoryRecord:
    """Raises NothingKnown where the id is not on record, and sqlalchemy's errors."""
    wanted = _summaries().add_columns(trajectories.c.event, trajectories.c.metrics)
    with read_only(engine).connect() as connection:
        row = connection.execute(wanted.where(trajectories.c.trajectory_id == name)).one_or_none()
        if row is None:
            raise NothingKnown(f"no trajectory {name} is on record")
        event = {} if row.erased else read_event(row.event)
        names = event.get("inference_ids", ())
        said = sa.select(feedback).where(feedback.c.inference_id.in_(names)).order_by(feedback.c.received_at)
        rated = connection.execute(said).all()
    known: dict[str, Any] = {field: getattr(row, field) for field in TrajectorySummary.model_fields}
    known.update(_by_token(event))
    return TrajectoryRecord(
        **known,
        metrics=row.metrics,
        tags=event.get("tags", {}),
        feedback=[Said(**{field: getattr(one, field) for field in Said.model_fields}) for one in rated],
    )


def read_event(event: bytes) -> Mapping[str, Any]:
    """The event as it went to the log (`feedback.schemas.Trajectory`), not validated again."""
    return json.loads(zlib.decompress(event))


def _by_token(event: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What belongs to action tokens, laid out over all tokens."""
    mask = event.get("action_mask", ())
    places = [place for place, sampled in enumerate(mask) if sampled]
    logprobs: list[float | None] = [None] * len(mask)
    for place, value in zip(places, event.get("behavior_logprobs") or (), strict=False):
        logprobs[place] = value
    versions: list[int | None] = [None] * len(mask)
    for span in event.get("spans") or ():
        for place in places[span["start"] : span["end"]]:
            versions[place] = span["version"]
    return {
        "token_ids": list(event.get("token_ids", ())),
        "action_mask": list(mask),
        "logprobs": logprobs,
        "versions": versions,
    }


def _summaries() -> sa.Select[Any]:
    return (
        sa.select(
            *(trajectories.c[name] for name in _COLUMNS),
            trainings.c.update,
            drops.c.reason.label("dropped"),
            trajectories.c.erased_at.is_not(None).label("erased"),
        )
        .outerjoin(trainings, trainings.c.trajectory_id == trajectories.c.trajectory_id)
        .outerjoin(drops, drops.c.trajectory_id == trajectories.c.trajectory_id)
    )
