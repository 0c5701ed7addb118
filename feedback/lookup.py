"""Reading the record: one inference with all that belongs to it; and taking a feedback back."""

import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import read_only
from feedback.generations import generation_of
from feedback.outbox import enqueue
from feedback.schemas import (
    FEEDBACK_TOPIC,
    FeedbackRecord,
    FeedbackRetracted,
    GenerationRecord,
    InferenceRecord,
    TrajectoryRecord,
)
from feedback.tables import feedback, generations, trajectories

USED = ("used", "late")
_OF_THE_ROW = ("choice_index", "episode_id", "state", "drop_reason", "trajectory_id", "erased_at")


def find_inference(engine: Engine, inference_id: str, api_key_id: str) -> InferenceRecord | None:
    """The inference of this key; None where it is not stored, or another key's. Raises what SQLAlchemy raises."""
    mine = (generations.c.inference_id == inference_id, generations.c.api_key_id == api_key_id)
    order = generations.c.prompt_index, generations.c.turn, generations.c.choice
    with read_only(engine).connect() as connection:
        rows = connection.execute(sa.select(generations).where(*mine).order_by(*order)).mappings().all()
        if not rows:
            return None
        records = [_generation_record(row) for row in rows]
        return InferenceRecord(
            inference_id=inference_id,
            versions=sorted({span.version for record in records for span in record.spans}),
            generations=records,
            feedback=_feedback_records(connection, inference_id, {row["episode_id"] for row in rows}, api_key_id),
            trajectories=_trajectory_records(connection, {row["trajectory_id"] for row in rows}),
        )


def retract_feedback(
    engine: Engine, feedback_id: str, owner: str, clock: Callable[[], float] = time.time
) -> FeedbackRetracted | None:
    """Take a feedback back; again is the same. None where there is none of this owner.

    The row stays, marked, and the mark is published: an audit must be able to tell what was said and unsaid.
    """
    mine = (feedback.c.feedback_id == feedback_id, feedback.c.owner == owner)
    with engine.begin() as connection:
        # Locked, as the assembler locks what it releases (SQLite has one writer anyway): one of the two comes first.
        query = sa.select(feedback.c.status, feedback.c.retracted_at).where(*mine).with_for_update()
        found = connection.execute(query).first()
        if found is None:
            return None
        now = clock()
        query = sa.update(feedback).where(*mine, feedback.c.retracted_at.is_(None))
        if connection.execute(query.values(retracted_at=now)).rowcount:
            enqueue(connection, FEEDBACK_TOPIC, [feedback_id], now)
    return FeedbackRetracted(feedback_id=feedback_id, effect="too_late" if found.status in USED else "removed")


def _generation_record(row: Any) -> GenerationRecord:
    generation = generation_of(row)
    kept = generation.model_dump(
        include={"prompt_index", "turn", "choice", "model", "user_id", "text", "finish_reason", "created_at"}
        | {"finished_at", "prompt_token_ids", "token_ids", "behavior_logprobs"}
    )
    return GenerationRecord(
        **kept,
        spans=list(generation.spans),
        **{name: row[name] for name in _OF_THE_ROW},
    )


def _feedback_records(
    connection: Connection, inference_id: str, episodes: set[str], api_key_id: str
) -> list[FeedbackRecord]:
    # An episode's name is the client's own, so another key may use the same.
    of_episode = sa.and_(feedback.c.episode_id.in_(episodes), feedback.c.owner == api_key_id)
    query = sa.select(feedback).where(sa.or_(feedback.c.inference_id == inference_id, of_episode))
    names = set(FeedbackRecord.model_fields) - {"user"}
    return [
        FeedbackRecord(**{name: row[name] for name in names}, user=row["user_id"])
        for row in connection.execute(query.order_by(feedback.c.received_at)).mappings()
        if row["status"] != "refused"
    ]


def _trajectory_records(connection: Connection, trajectory_ids: set[str | None]) -> list[TrajectoryRecord]:
    wanted = [name for name in trajectory_ids if name is not None]
    columns = [trajectories.c[name] for name in TrajectoryRecord.model_fields]
    query = sa.select(*columns).where(trajectories.c.trajectory_id.in_(wanted)).order_by(trajectories.c.seq)
    return [TrajectoryRecord(**row) for row in connection.execute(query).mappings()]
