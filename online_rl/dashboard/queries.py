"""What the admin routes read, on SQLite and PostgreSQL alike. Every query is a count, an index look-up or limited."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.database import read_only
from feedback.tables import dead_letters, trajectories
from online_rl.dashboard.deliveries import can_promote
from online_rl.registry import Registry
from online_rl.schemas import BASE_VERSION, PolicyVersion, VersionState
from online_rl.tables import drift_events, updates
from serving.tables import rollouts


def read_updates(engine: Engine, since: int | None, limit: int) -> list[dict[str, Any]]:
    """Updates after number `since`, oldest first; without it the newest `limit`."""
    wanted = sa.select(updates)
    wanted = (
        wanted.order_by(updates.c.update.desc())
        if since is None
        else wanted.where(updates.c.update > since).order_by(updates.c.update)
    )
    rows = _rows(engine, wanted.limit(limit))
    return rows[::-1] if since is None else rows


def read_drift_events(engine: Engine, limit: int) -> list[dict[str, Any]]:
    """The newest changes of taste, newest first."""
    return _rows(engine, sa.select(drift_events).order_by(drift_events.c.detected_at.desc()).limit(limit))


def read_dead_letters(engine: Engine, limit: int) -> dict[str, Any]:
    """The newest messages that could not be handled, without their content: it may hold what users wrote."""
    shown = [column for column in dead_letters.c if column.name not in ("value", "key")]
    newest = sa.select(*shown).order_by(dead_letters.c.created_at.desc()).limit(limit)
    with read_only(engine).connect() as connection:
        total = connection.scalar(sa.select(sa.func.count()).select_from(dead_letters))
        return {"total": total, "dead_letters": [dict(row._mapping) for row in connection.execute(newest)]}


def read_versions(engine: Engine, registry: Registry) -> dict[str, Any]:
    """Every version, oldest first, with when it became live, the rewards it earned, and what may be done with it."""
    versions = registry.list()
    live_times = _live_times(engine)
    earned = {row["version"]: row for row in _rows(engine, _earned())}
    shown = [
        version.model_dump(mode="json")
        | {
            "live_at": _live_at(version, live_times),
            "rewards": earned.get(version.version, {}).get("rewards", 0),
            "reward_mean": earned.get(version.version, {}).get("reward_mean"),
            "can_promote": can_promote(version),
        }
        for version in versions
    ]
    live = next((version.version for version in versions if version.state is VersionState.LIVE), None)
    former = any(version.state is VersionState.RETIRED for version in versions)
    return {"live": live, "can_roll_back": live is not None and former, "versions": shown}


def _live_at(version: PolicyVersion, delivered: dict[int, float]) -> float | None:
    """When it became live the last time; None where it never was. The base and promotions by hand have no rollout."""
    if version.state is VersionState.LIVE:
        return version.changed_at
    return delivered.get(version.version, version.created_at if version.version == BASE_VERSION else None)


def _live_times(engine: Engine) -> dict[int, float]:
    """Version → when it was last delivered to all replicas (Unix seconds)."""
    wanted = sa.select(rollouts.c.version, sa.func.max(rollouts.c.finished_at).label("at"))
    rows = _rows(engine, wanted.where(rollouts.c.state == "live").group_by(rollouts.c.version))
    return {row["version"]: row["at"] for row in rows if row["at"] is not None}


def _earned() -> sa.Select[Any, int, Any]:
    return (
        sa.select(
            trajectories.c.oldest_version.label("version"),
            sa.func.count().label("rewards"),
            sa.func.avg(trajectories.c.reward).label("reward_mean"),
        )
        .where(trajectories.c.oldest_version.is_not(None))
        .group_by(trajectories.c.oldest_version)
    )


def _rows(engine: Engine, wanted: sa.Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    with read_only(engine).connect() as connection:
        return [dict(row._mapping) for row in connection.execute(wanted)]
