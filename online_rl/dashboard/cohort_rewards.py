"""The newest rewards by cohort: who is served well, and whose taste changed."""

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine

from feedback.database import read_only
from feedback.tables import trajectories
from online_rl.cohorts import name_cohort, name_length
from online_rl.dashboard.rewards import FEWEST, WINDOW

TRAJECTORIES = 1000
POINTS = 120
COHORTS = 40


class CohortReward(BaseModel):
    """A cohort's rewards among the newest trajectories, with a moving average of 32 in at most 120 points."""

    model_config = ConfigDict(frozen=True)

    name: str
    """`dimension=label`, as drift events name it."""
    rewards: int
    mean: float
    recent: float
    """Mean of its last 32."""
    at: list[float]
    average: list[float]


def read_cohorts(engine: Engine, limit: int = TRAJECTORIES) -> list[CohortReward]:
    """The cohorts of the newest `limit` trajectories, largest first. Raises sqlalchemy's errors."""
    columns = (trajectories.c.event, trajectories.c.reward, trajectories.c.released_at)
    wanted = sa.select(*columns).where(trajectories.c.erased_at.is_(None)).order_by(trajectories.c.seq.desc())
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    with read_only(engine).connect() as connection:
        for row in connection.execute(wanted.limit(limit)):
            for cohort in find_names(json.loads(zlib.decompress(row.event))):
                found[cohort].append((row.released_at, row.reward))
    made = [describe(name, rated[::-1]) for name, rated in found.items() if len(rated) >= FEWEST]
    return sorted(made, key=lambda one: (-one.rewards, one.name))[:COHORTS]


def find_names(event: Mapping[str, Any]) -> list[str]:
    """As `online_rl.cohorts.find_cohorts` names them, without checking a whole event for it."""
    tags = [name_cohort(f"tag.{name}", value) for name, value in sorted(event.get("tags", {}).items())]
    prompt = event["action_mask"].index(1)
    return [name_cohort("key", event["api_key_id"]), *tags, name_cohort("length", name_length(prompt))]


def describe(name: str, rated: Sequence[tuple[float, float]]) -> CohortReward:
    """`rated`: (time, reward), oldest first."""
    rewards = [reward for _, reward in rated]
    step = max(1, -(-len(rated) // POINTS))
    ends = range(len(rated) - 1, FEWEST - 2, -step)
    averages = [(rated[end][0], _mean(rewards[max(0, end + 1 - WINDOW) : end + 1])) for end in reversed(ends)]
    return CohortReward(
        name=name,
        rewards=len(rewards),
        mean=_mean(rewards),
        recent=_mean(rewards[-WINDOW:]),
        at=[at for at, _ in averages],
        average=[average for _, average in averages],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
