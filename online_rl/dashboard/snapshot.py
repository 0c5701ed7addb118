"""The status of the whole service, read in one go."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import read_only
from feedback.tables import dead_letters, feedback, generations, trajectories
from online_rl.dashboard.flow import read_flow
from online_rl.dashboard.pace import read_pace
from online_rl.dashboard.rewards import WINDOW
from online_rl.dashboard.status import PartStatus, Snapshot, Status
from online_rl.schemas import BASE_VERSION, VersionState
from online_rl.tables import controls, drift_events, drops, parts, policy_versions, trainings, updates
from serving.tables import replicas

RECENT_S = 300.0
"""What the page calls the last minutes."""


def read_snapshot(engine: Engine, started_at: float, now: float) -> Snapshot:
    """The service at `now` (Unix seconds). Raises sqlalchemy's errors."""
    with read_only(engine).connect() as connection:
        changed_at = connection.scalar(sa.select(sa.func.max(policy_versions.c.changed_at)))
        drifts = _count(connection, drift_events)
        tastes = connection.scalar(
            sa.select(sa.func.count()).select_from(drift_events).where(drift_events.c.cause == "taste")
        )
        recovered = connection.scalar(sa.select(sa.func.count(drift_events.c.recovered_at)))
        newest = _first(connection, sa.select(updates).order_by(updates.c.update.desc()))
        frozen = _first(connection, sa.select(controls).where(controls.c.name == "learning_frozen"))
        released, trained = _count(connection, trajectories), _count(connection, trainings)
        dropped = _by(connection, drops.c.reason)
        latest = _latest_rewards(connection)
        minutes, rated = _since(connection, now - RECENT_S)
        asked, failed = _requests(connection)
        letters = _count(connection, dead_letters)
        live = _first(connection, sa.select(policy_versions).where(policy_versions.c.state == VersionState.LIVE))
        status = Status(
            live_version=None if live is None else live.version,
            versions_published=_published(connection),
            requests=asked,
            failed_requests=failed,
            feedback_accepted=_count(connection, feedback),
            generations_stored=_count(connection, generations),
            trajectories_released=released,
            trajectories_trained=trained,
            trajectories_dropped=dropped,
            backlog=max(0, released - trained - sum(dropped.values())),
            drift_events=tastes or 0,
            updates=0 if newest is None else newest.update,
            kl_to_base=_figure(newest, "kl_to_base"),
            mismatch_mean=_figure(live, "mismatch_mean"),
            mismatch_kl=_figure(live, "mismatch_kl"),
            learning_frozen=bool(frozen and frozen.value),
            learning_frozen_reason=frozen.reason if frozen and frozen.value else None,
            reward_recent=_mean(latest[:WINDOW]),
            reward_earlier=_mean(latest[WINDOW:]),
            reward_last_minutes=minutes,
            rewards_last_minutes=rated,
            feedback_by_status=_by(connection, feedback.c.status),
            answers_dropped=_by(connection, generations.c.drop_reason, generations.c.state == "dropped"),
            dead_letters=letters,
            flow=read_flow(connection, newest, live),
            pace=read_pace(connection, now),
            parts=_parts(connection),
            seconds=max(0.0, now - started_at),
        )
    revisions = {
        "versions": changed_at or 0.0,
        "rewards": released,
        "updates": status.updates,
        "drift": drifts + (recovered or 0),
        "dead_letters": letters,
    }
    return Snapshot(status=status, revisions=revisions)


def _first(connection: Connection, wanted: sa.Select[Any]) -> sa.Row[Any] | None:
    return connection.execute(wanted.limit(1)).first()


def _count(connection: Connection, table: sa.Table) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def _published(connection: Connection) -> int:
    wanted = sa.select(sa.func.count()).where(policy_versions.c.version != BASE_VERSION)
    return connection.scalar(wanted) or 0


def _by(connection: Connection, column: sa.ColumnElement[str], *where: sa.ColumnElement[bool]) -> dict[str, int]:
    rows = connection.execute(sa.select(column, sa.func.count()).where(*where).group_by(column).order_by(column))
    return {name: number for name, number in rows if name is not None}


def _requests(connection: Connection) -> tuple[int, int]:
    """Requests that the replicas were asked, and how many of them failed."""
    sums = sa.select(sa.func.sum(replicas.c.requests), sa.func.sum(replicas.c.failed_requests))
    asked, failed = connection.execute(sums).one()
    return int(asked or 0), int(failed or 0)


def _parts(connection: Connection) -> dict[str, PartStatus]:
    """The background parts and the engine replicas, which report to a table of their own."""
    reported = {
        row.name: PartStatus(**row._mapping) for row in connection.execute(sa.select(parts).order_by(parts.c.name))
    }
    for row in connection.execute(sa.select(replicas).order_by(replicas.c.replica_id)):
        detail = row.detail or (f"version {row.actual_version}" if row.actual_version is not None else "")
        name = f"policy {row.replica_id}"
        reported[name] = PartStatus(state=row.state, detail=detail, heartbeat_at=row.heartbeat_at)
    return reported


def _latest_rewards(connection: Connection) -> list[float]:
    """The last two windows of rewards, newest first."""
    order = (trajectories.c.released_at.desc(), trajectories.c.seq.desc())
    return list(connection.scalars(sa.select(trajectories.c.reward).order_by(*order).limit(2 * WINDOW)))


def _since(connection: Connection, start: float) -> tuple[float | None, int]:
    rewards = sa.select(sa.func.avg(trajectories.c.reward), sa.func.count())
    mean, number = connection.execute(rewards.where(trajectories.c.released_at >= start)).one()
    return mean, number


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _figure(row: sa.Row[Any] | None, name: str) -> float | None:
    """A figure of a row's `metrics`, whichever area it stands under (``policy/kl_to_base`` or ``kl_to_base``)."""
    if row is None:
        return None
    return next((value for key, value in row.metrics.items() if key.rsplit("/", 1)[-1] == name), None)
