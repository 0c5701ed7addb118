"""What the assembler joins, as it lies in the record: open generations, and the feedback that names them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from feedback.assembly import Draft
from feedback.database import chunked
from feedback.generations import generation_of
from feedback.joining import Signal, Target, target_of
from feedback.outliers import QUARANTINED, OutlierWatch
from feedback.tables import feedback, generations
from serving.schemas import Generation

CLOSED = 100
"""Released, and dropped, generations of an episode that are looked at to say what became of feedback on it."""
Episode = tuple[str, str]
"""(API key id, episode id): two keys that use the same episode id are not in one episode."""


class Open(NamedTuple):
    """A generation that can still go into a trajectory, with its row's number and the end of its window."""

    seq: int
    due_at: float
    generation: Generation


def signal_of(row: Any) -> Signal:
    return Signal(
        feedback_id=row.feedback_id,
        owner=row.owner,
        inference_id=row.inference_id,
        episode_id=row.episode_id,
        choice_index=row.choice_index,
        metric_name=row.metric_name,
        value=row.value,
        user_id=row.user_id,
        received_at=row.received_at,
    )


def read_targets(connection: Connection, rows: Sequence[Any]) -> list[Target]:
    """The stored generations that feedback `rows` may name.

    Of an episode all that are open, and of the others the first ones: they tell that there were some, and when.
    """
    query = sa.select(*(generations.c[name] for name in Target.__dataclass_fields__))
    found: list[Any] = []
    for names in chunked({row.inference_id for row in rows if row.inference_id is not None}):
        found += connection.execute(query.where(generations.c.inference_id.in_(names)))
    for key, name in {(row.owner, row.episode_id) for row in rows if row.episode_id is not None}:
        mine = query.where(generations.c.api_key_id == key, generations.c.episode_id == name)
        for state, limit in (("open", None), ("released", CLOSED), ("dropped", CLOSED)):
            oldest = mine.where(generations.c.state == state).order_by(generations.c.seq).limit(limit)
            found += connection.execute(oldest)
    return [Target(*row) for row in found]


def read_open(connection: Connection, episodes: Sequence[Episode]) -> dict[Episode, list[Open]]:
    # A key at a time: SQLite finds pairs of key and episode by no index.
    by_key: defaultdict[str, list[str]] = defaultdict(list)
    for key, episode in episodes:
        by_key[key].append(episode)
    found: dict[Episode, list[Open]] = {}
    for key, names in by_key.items():
        for part in chunked(names):
            mine = generations.c.api_key_id == key, generations.c.episode_id.in_(part), generations.c.state == "open"
            for row in connection.execute(sa.select(generations).where(*mine)):
                found.setdefault((key, row.episode_id), []).append(Open(row.seq, row.due_at, generation_of(row)))
    return found


def read_signals(
    connection: Connection, opened: Mapping[Episode, Sequence[Open]], watch: OutlierWatch
) -> Mapping[str, Sequence[Signal]]:
    """The feedback that names an open generation, by the name that it uses; none that is in quarantine or will be."""
    inferences = {one.generation.inference_id for episode in opened.values() for one in episode}
    # Locked until the release is committed, so that a retraction in between is not answered "removed".
    query = sa.select(feedback).where(feedback.c.retracted_at.is_(None)).with_for_update()
    found: defaultdict[str, list[Signal]] = defaultdict(list)
    for column, names in (
        (feedback.c.inference_id, inferences),
        (feedback.c.episode_id, {name for _, name in opened}),
    ):
        for part in chunked(names):
            for row in connection.execute(query.where(column.in_(part))):
                new_outlier = row.status == "new" and watch.is_outlier(row.metric_name, row.value)
                if row.status != QUARANTINED and not new_outlier:
                    found[row.inference_id or row.episode_id].append(signal_of(row))
    return found


def signals_about(draft: Draft, signals: Mapping[str, Sequence[Signal]]) -> list[Signal]:
    """The feedback that names a generation of `draft`, or its episode."""
    names = {name for generation in draft.generations for name in _names(target_of(generation))}
    return [found for name in names for found in signals.get(name, ())]


def _names(target: Target) -> set[str]:
    """What feedback may call `target`; an inference that is its own episode goes by one name."""
    return {target.inference_id, target.episode_id}


def by_name(targets: Iterable[Target]) -> dict[str, list[Target]]:
    found: defaultdict[str, list[Target]] = defaultdict(list)
    for target in targets:
        for name in _names(target):
            found[name].append(target)
    return found
