"""Trajectories as the record has them: what each was made of, and what became of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from feedback.database import chunked
from feedback.tables import feedback, generations, trajectories
from online_rl.dashboard.lineage_records import FeedbackLineage, TrajectoryLineage
from online_rl.tables import drops, trainings

_STORED = ("episode_id", "api_key_id", "user_id", "reward", "oldest_version", "erased_at")


def find_known(connection: Connection, names: Sequence[str]) -> set[str]:
    """Which of these ids are on record, as stored, trained on or dropped."""
    return {
        name
        for table in (trajectories, trainings, drops)
        for part in chunked(names)
        for name in connection.scalars(sa.select(table.c.trajectory_id).where(table.c.trajectory_id.in_(part)))
    }


def read_trajectories(connection: Connection, names: Sequence[str]) -> list[TrajectoryLineage]:
    """Those of `names`, in their order, each with its answers and feedback."""
    rows: dict[str, Any] = {}
    trained: dict[str, int] = {}
    dropped: dict[str, str] = {}
    columns = [column for column in trajectories.c if column.name not in ("event", "metrics")]
    for part in chunked(names):
        stored = sa.select(*columns).where(trajectories.c.trajectory_id.in_(part))
        rows |= {row.trajectory_id: row for row in connection.execute(stored)}
        made = sa.select(trainings.c.trajectory_id, trainings.c.update).where(trainings.c.trajectory_id.in_(part))
        trained |= {row.trajectory_id: row.update for row in connection.execute(made)}
        gone = sa.select(drops.c.trajectory_id, drops.c.reason).where(drops.c.trajectory_id.in_(part))
        dropped |= {row.trajectory_id: row.reason for row in connection.execute(gone)}
    answers = _answers(connection, rows.values())
    said = _feedback(connection, answers)
    return [
        TrajectoryLineage(
            trajectory_id=name,
            **{field: getattr(rows.get(name), field, None) for field in _STORED},
            inference_ids=list(dict.fromkeys(answer.inference_id for answer in answers.get(name, ()))),
            feedback=said.get(name, []),
            update=trained.get(name),
            dropped=dropped.get(name),
        )
        for name in names
    ]


def _answers(connection: Connection, rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Trajectory id → its generations, in the order they were sampled."""
    # By key and episode, which an index answers; there is none by trajectory.
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    names: set[str] = set()
    for row in rows:
        wanted[row.api_key_id].add(row.episode_id)
        names.add(row.trajectory_id)
    columns = ("inference_id", "choice_index", "api_key_id", "episode_id", "trajectory_id", "created_at")
    query = sa.select(*(generations.c[name] for name in columns)).order_by(generations.c.created_at)
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for key, episodes in wanted.items():
        for part in chunked(episodes):
            mine = (
                generations.c.api_key_id == key,
                generations.c.episode_id.in_(part),
                generations.c.state == "released",
            )
            for row in connection.execute(query.where(*mine)):
                if row.trajectory_id in names:
                    found[row.trajectory_id].append(row)
    return found


def _feedback(connection: Connection, answers: Mapping[str, Sequence[Any]]) -> dict[str, list[FeedbackLineage]]:
    """Trajectory id → the feedback that its reward is made of, in the order it came."""
    by_answer: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    by_episode: defaultdict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for name, made in answers.items():
        for answer in made:
            by_answer[answer.inference_id, answer.choice_index].append(name)
        by_episode[made[0].api_key_id, made[0].episode_id].append((made[0].created_at, name))
    query = sa.select(feedback).where(feedback.c.status == "used")
    rows = [
        row
        for column, wanted in (
            (feedback.c.inference_id, {inference_id for inference_id, _ in by_answer}),
            (feedback.c.episode_id, {episode for _, episode in by_episode}),
        )
        for part in chunked(wanted)
        for row in connection.execute(query.where(column.in_(part)))
    ]
    found: defaultdict[str, list[FeedbackLineage]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.received_at):
        about = by_answer.get((row.inference_id, row.choice_index), [])
        if row.inference_id is None:
            about = [name for began, name in by_episode[row.owner, row.episode_id] if began <= row.received_at]
        for name in about:
            found[name].append(
                FeedbackLineage(**{field: getattr(row, field) for field in FeedbackLineage.model_fields})
            )
    return found
