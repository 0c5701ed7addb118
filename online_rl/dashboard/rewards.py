"""The series behind the reward chart, downsampled in SQL so that a page costs the same after a day and a year."""

import math
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine

from feedback.database import read_only
from feedback.tables import trajectories

WINDOW = 32
"""Rewards in the moving average."""
FEWEST = 8
"""Rewards below which an average says nothing and is not shown."""
BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


class RewardSeries(BaseModel):
    """Equally long columns, oldest first: one entry for each bucket of time in which something was rated."""

    model_config = ConfigDict(frozen=True)

    window: int = WINDOW
    bucket_seconds: float
    at: list[float]
    """Start of the bucket, Unix seconds."""
    count: list[int]
    mean: list[float]
    """Mean reward of the bucket."""
    average: list[float | None]
    """Mean of the last 32 rewards at the end of the bucket; None before the eighth reward of all."""


def choose_bucket(span_s: float, limit: int) -> float:
    """The smallest round bucket length of which at most `limit` cover `span_s` seconds."""
    for bucket in BUCKETS_S:
        if span_s / bucket <= limit:
            return float(bucket)
    return math.ceil(span_s / limit / 86400) * 86400.0


def read_rewards(engine: Engine, *, since: float | None, limit: int, bucket: float | None = None) -> RewardSeries:
    """Rewards by the time their trajectory was released, from `since` on. Raises sqlalchemy's errors.

    `bucket` asks for a bucket length in seconds, so that new buckets fit onto those a page already has; where it
    would give more than `limit` buckets a longer one is chosen.
    """
    with read_only(engine).connect() as connection:
        # Two questions, not one: each is then answered by one end of the index.
        oldest = connection.scalar(sa.select(sa.func.min(trajectories.c.released_at)))
        newest = connection.scalar(sa.select(sa.func.max(trajectories.c.released_at)))
        if oldest is None or newest is None:
            return RewardSeries(bucket_seconds=bucket or BUCKETS_S[0], at=[], count=[], mean=[], average=[])
        start = oldest if since is None else max(since, oldest)
        fitting = choose_bucket(newest - start, limit)
        length = max(bucket, fitting) if bucket else fitting
        first = math.floor(start / length) * length
        rows = connection.execute(_bucketed(first, length)).all()
    return RewardSeries(
        bucket_seconds=length,
        at=[float(row.bucket) * length for row in rows],
        count=[row.rewards for row in rows],
        mean=[row.mean for row in rows],
        average=[row.average for row in rows],
    )


def _bucketed(first: float, length: float) -> sa.Select[Any, Any, Any, Any]:
    """Buckets from time `first` on. The average at the end of each is read backwards along the primary key, so a
    bucket costs 32 rows however many there are. Rows are numbered in the order of their release."""
    buckets = (
        sa.select(
            sa.func.floor(trajectories.c.released_at / length).label("bucket"),
            sa.func.count().label("rewards"),
            sa.func.avg(trajectories.c.reward).label("mean"),
            sa.func.max(trajectories.c.seq).label("last"),
        )
        .where(trajectories.c.released_at >= first)
        .group_by(sa.literal_column("1"))
        .subquery()
    )
    before = (
        sa.select(trajectories.c.reward)
        .where(trajectories.c.seq <= buckets.c.last)
        .order_by(trajectories.c.seq.desc())
        .limit(WINDOW)
        .correlate(buckets)
        .subquery()
    )
    average = sa.select(sa.case((sa.func.count() >= FEWEST, sa.func.avg(before.c.reward)))).scalar_subquery()
    return sa.select(buckets.c.bucket, buckets.c.rewards, buckets.c.mean, average.label("average")).order_by(
        buckets.c.bucket
    )
