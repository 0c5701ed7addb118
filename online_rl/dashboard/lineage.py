"""From a policy version to the trajectories, feedback and users that made it, and back. Reads, and changes nothing.

A version's weights hold every update up to its own (`online_rl.ancestry`), an update's trajectories are in
`trainings`, and a trajectory's answers and feedback are found by its episode. What was erased is there as ids.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from feedback.database import chunked, read_only
from feedback.rated import find_rated
from feedback.tables import feedback, generations
from online_rl.ancestry import Span, find_ancestry, holds, subtract
from online_rl.dashboard.lineage_queries import find_known, read_trajectories
from online_rl.dashboard.lineage_records import (
    DataLineage,
    LearnedVersion,
    UpdateLineage,
    VersionLineage,
    share_by_user,
)
from online_rl.registry import Registry
from online_rl.schemas import PolicyVersion
from online_rl.tables import trainings, updates

WENT_BACK = "guard/rolled_back_to"
LIMIT = 1000
"""Trajectories that are listed; what is counted is always complete."""


class NothingKnown(LookupError):
    """The record holds nothing under this id."""


def read_version(engine: Engine, version: int, *, whole: bool = False, limit: int = LIMIT) -> VersionLineage:
    """What made `version`. Raises UnknownVersion."""
    registry = Registry(engine)
    wanted = registry.get(version)
    parent = None if wanted.parent is None else registry.get(wanted.parent)
    with read_only(engine).connect() as connection:
        went_back = _read_went_back(connection)
        spans = _ancestry(wanted, went_back)
        if not whole and parent is not None:
            spans = subtract(spans, _ancestry(parent, went_back))
        made = _updates(connection, spans)
        count, names = _trained_in(connection, spans, limit)
        found = read_trajectories(connection, names)
    return VersionLineage(
        version=version,
        parent=wanted.parent,
        state=wanted.state,
        update=_update_of(wanted),
        whole=whole,
        updates=made,
        trajectory_count=count,
        users=share_by_user(found),
        trajectories=found,
    )


def read_trajectory(engine: Engine, trajectory_id: str) -> DataLineage:
    """What became of one trajectory. Raises NothingKnown."""
    found = _read(engine, lambda connection: {trajectory_id} & find_known(connection, [trajectory_id]))
    if not found.trajectories:
        raise NothingKnown(f"no trajectory {trajectory_id} is stored; `online-rl lineage --inference` takes answers")
    return found


def read_inference(engine: Engine, inference_id: str) -> DataLineage:
    """What became of one inference, by its bare id. Raises NothingKnown."""
    query = sa.select(generations.c.trajectory_id).where(generations.c.inference_id == inference_id)
    with read_only(engine).connect() as connection:
        rows = connection.scalars(query).all()
    if not rows:
        raise NothingKnown(f"no inference {inference_id} is stored; a new one appears within seconds")
    return _read(engine, lambda _connection: {name for name in rows if name is not None})


def read_user(engine: Engine, names: Collection[str], limit: int = LIMIT) -> DataLineage:
    """What became of one user's data: what they asked, and what they said about answers to anybody.

    `names`: the user's id and what stands in its place once it was erased. Raises NothingKnown.
    """
    with read_only(engine).connect() as connection:
        known = any(
            connection.execute(sa.select(table.c.seq).where(table.c.user_id.in_(names)).limit(1)).first()
            for table in (generations, feedback)
        )
    if not known:
        raise NothingKnown("nothing of this user is stored")
    return _read(engine, lambda connection: trajectories_of_user(connection, names), limit)


def trajectories_of_user(connection: Connection, names: Collection[str]) -> set[str]:
    """Those made of a user's answers, or with a reward that the user's feedback is part of."""
    own = sa.select(generations.c.trajectory_id).where(
        generations.c.user_id.in_(names), generations.c.trajectory_id.is_not(None)
    )
    said = sa.select(feedback).where(feedback.c.user_id.in_(names), feedback.c.status == "used")
    found = {name for name in connection.scalars(own) if name is not None}
    return found | find_rated(connection, connection.execute(said).all())


def learned_from(engine: Engine, trajectory_ids: Iterable[str]) -> list[LearnedVersion]:
    """The versions whose weights hold an update with one of these, oldest first."""
    with read_only(engine).connect() as connection:
        query = sa.select(trainings.c.update).distinct()
        made = {
            update
            for part in chunked(trajectory_ids)
            for update in connection.scalars(query.where(trainings.c.trajectory_id.in_(part)))
        }
        return _holding(Registry(engine).list(), _read_went_back(connection), made)


def _read(engine: Engine, choose: Callable[[Connection], set[str]], limit: int = LIMIT) -> DataLineage:
    with read_only(engine).connect() as connection:
        names = sorted(choose(connection))
        found = read_trajectories(connection, names[:limit])
    return DataLineage(trajectory_count=len(names), trajectories=found, versions=learned_from(engine, names))


def _update_of(version: PolicyVersion) -> int | None:
    made = version.metrics.get("update")
    return None if made is None else int(made)


def _ancestry(version: PolicyVersion, went_back: Mapping[int, int]) -> list[Span]:
    return find_ancestry(_update_of(version) or 0, went_back)


def _holding(versions: Iterable[PolicyVersion], went_back: Mapping[int, int], made: set[int]) -> list[LearnedVersion]:
    found: list[LearnedVersion] = []
    for one in versions:
        spans = _ancestry(one, went_back)
        if any(holds(spans, update) for update in made):
            found.append(LearnedVersion(version=one.version, state=one.state))
    return found


def _read_went_back(connection: Connection) -> dict[int, int]:
    """Update → the earlier one whose weights it went back to."""
    # Such an update trained on nothing, and there are few of those.
    query = sa.select(updates.c.update, updates.c.metrics).where(updates.c.trajectories == 0)
    return {
        row.update: min(int(row.metrics[WENT_BACK]), row.update - 1)
        for row in connection.execute(query)
        if WENT_BACK in row.metrics
    }


def _updates(connection: Connection, spans: Iterable[Span]) -> list[UpdateLineage]:
    columns = [updates.c[name] for name in UpdateLineage.model_fields]
    rows = [
        row
        for first, last in spans
        for row in connection.execute(sa.select(*columns).where(updates.c.update.between(first, last))).mappings()
    ]
    return [UpdateLineage(**row) for row in sorted(rows, key=lambda row: row["update"])]


def _trained_in(connection: Connection, spans: Sequence[Span], limit: int) -> tuple[int, list[str]]:
    """How many trajectories trained in these updates, and the newest `limit` of them."""
    count = 0
    names: list[str] = []
    for first, last in spans:
        inside = trainings.c.update.between(first, last)
        count += connection.scalar(sa.select(sa.func.count()).select_from(trainings).where(inside)) or 0
        query = sa.select(trainings.c.trajectory_id).where(inside)
        order = trainings.c.update.desc(), trainings.c.trajectory_id
        names += connection.scalars(query.order_by(*order).limit(limit - len(names)))
    return count, names
