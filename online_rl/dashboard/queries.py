"""What the admin routes read, on SQLite and PostgreSQL alike. Every query is a count, an index look-up or limited."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.database import read_only
from feedback.tables import dead_letters, trajectories
from online_rl.registry import Registry
from online_rl.schemas import TRANSITIONS, PolicyVersion, VersionState
from online_rl.tables import drift_events, updates


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
    earned = {row["version"]: row for row in _rows(engine, _earned())}
    shown = [
        version.model_dump(mode="json")
        | {
            "live_at": live_at,
            "rewards": earned.get(version.version, {}).get("rewards", 0),
            "reward_mean": earned.get(version.version, {}).get("reward_mean"),
            "can_promote": VersionState.LIVE in TRANSITIONS[version.state],
        }
        for version, live_at in zip(versions, find_live_times(versions), strict=True)
    ]
    live = next((version.version for version in versions if version.state is VersionState.LIVE), None)
    former = any(version.state is VersionState.RETIRED for version in versions)
    return {"live": live, "can_roll_back": live is not None and former, "versions": shown}


def find_live_times(versions: list[PolicyVersion]) -> list[float | None]:
    """When each version became live (Unix seconds), None where it never was or it is not known.

    The one that is live changed last when it became so. One that is not was replaced by another, at the same moment
    as that became live; and versions become live in the order of their numbers unless an operator goes back.
    """
    times: list[float | None] = []
    before: PolicyVersion | None = None
    for version in versions:
        if version.state is VersionState.LIVE:
            times.append(version.changed_at)
        elif version.state in (VersionState.RETIRED, VersionState.ROLLED_BACK):
            times.append(version.created_at if before is None else max(version.created_at, before.changed_at))
        else:
            times.append(None)
            continue
        before = version
    return times


def _earned() -> sa.Select[tuple[int, int, float]]:
    return (
        sa.select(
            trajectories.c.oldest_version.label("version"),
            sa.func.count().label("rewards"),
            sa.func.avg(trajectories.c.reward).label("reward_mean"),
        )
        .where(trajectories.c.oldest_version.is_not(None))
        .group_by(trajectories.c.oldest_version)
    )


def _rows(engine: Engine, wanted: sa.Select[Any]) -> list[dict[str, Any]]:
    with read_only(engine).connect() as connection:
        return [dict(row._mapping) for row in connection.execute(wanted)]
