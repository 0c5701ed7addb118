"""What only `/metrics` asks for: the newest update's figures, rewards by version, versions by state, and the limits."""

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine

from feedback.database import read_only
from feedback.tables import trajectories
from online_rl.config import Settings
from online_rl.tables import policy_versions, updates

RECENT_REWARDS = 1000
VERSIONS = 8
"""Versions whose rewards are told apart: each is a time series of its own, and a version is only asked about while it
is new."""


class VersionReward(BaseModel):
    """What a version earned, of the last `RECENT_REWARDS` rewards."""

    model_config = ConfigDict(frozen=True)

    version: int
    rewards: int
    mean: float


class Limits(BaseModel):
    """Settings that alerts compare with, so that a rule need not repeat a number that somebody changed."""

    model_config = ConfigDict(frozen=True)

    kl_budget: float
    probe_tolerance: float
    max_staleness: int
    min_batch: int

    @classmethod
    def of(cls, settings: Settings) -> "Limits":
        return cls(
            kl_budget=settings.learner.kl_budget,
            probe_tolerance=settings.swap.probe_tolerance,
            max_staleness=settings.learner.max_staleness,
            min_batch=settings.learner.min_batch,
        )


class Measured(BaseModel):
    """Read once a scrape. `update`: the newest update's figures by name (`area/name`)."""

    model_config = ConfigDict(frozen=True)

    update: dict[str, float] = {}
    version_rewards: tuple[VersionReward, ...] = ()
    versions_by_state: dict[str, int] = {}


def read_measured(engine: Engine) -> Measured:
    """The figures now. Raises sqlalchemy's errors."""
    recent = (
        sa.select(trajectories.c.oldest_version.label("version"), trajectories.c.reward)
        .order_by(trajectories.c.seq.desc())
        .limit(RECENT_REWARDS)
        .subquery()
    )
    by_version = (
        sa.select(recent.c.version, sa.func.count().label("rewards"), sa.func.avg(recent.c.reward).label("mean"))
        .where(recent.c.version.is_not(None))
        .group_by(recent.c.version)
        .order_by(recent.c.version.desc())
        .limit(VERSIONS)
    )
    by_state = sa.select(policy_versions.c.state, sa.func.count().label("versions")).group_by(policy_versions.c.state)
    with read_only(engine).connect() as connection:
        newest = connection.scalar(sa.select(updates.c.metrics).order_by(updates.c.update.desc()).limit(1))
        return Measured(
            update=newest or {},
            version_rewards=tuple(VersionReward(**row._mapping) for row in connection.execute(by_version)),
            versions_by_state={row.state: row.versions for row in connection.execute(by_state)},
        )
