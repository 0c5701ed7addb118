"""Writes a believable past (`tests.ops.history`) into a database, as the parts of the service would have."""

import math
import random
import zlib
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

import feedback.tables
import online_rl.tables
import serving.tables
from feedback.schemas import Trajectory
from online_rl.schemas import Manifest
from serving.schemas import VersionSpan
from tests.ops.history import History, Rated, Updated, simulate

REJECTED = "probe: further from version 23 than from its parent (mean 0.21, tolerance 0.15)"


def create_tables(engine: Engine) -> None:
    """The tables of the packages whose data the operations application reads."""
    for metadata in (feedback.tables.metadata, online_rl.tables.metadata, serving.tables.metadata):
        metadata.create_all(engine)


def seed(engine: Engine, now: float, folder: Path, *, per_taste: int = 320) -> History:
    """Three tastes of `per_taste` trajectories each; the newest a few seconds before `now` (Unix seconds).

    The versions lie below `folder`, each with nothing but its manifest.
    """
    history = simulate(now - 4.0, per_taste=per_taste)
    with engine.begin() as connection:
        add_rated(connection, *history.rated)
        _add_learning(connection, history)
        _add_versions(connection, history, folder)
        _add_parts(connection, now)
        _add_replica(connection, now, live=max(one.update for one in history.updated if not one.rejected))
        _add_dead_letter(connection, now)
    return history


def add_rated(connection: Connection, *rated: Rated) -> None:
    """Answers, the feedback on them, and the trajectories made of both."""
    connection.execute(sa.insert(feedback.tables.generations), [_generation(one) for one in rated])
    connection.execute(sa.insert(feedback.tables.feedback), [_feedback(one) for one in rated])
    connection.execute(sa.insert(feedback.tables.trajectories), [_trajectory(one) for one in rated])


def _generation(one: Rated) -> dict[str, object]:
    name, at = f"inf-{one.number:06d}", one.released_at
    return {
        "inference_id": name, "prompt_index": 0, "turn": 0, "choice": 0, "choice_index": 0, "api_key_id": "anonymous",
        "episode_id": name, "user_id": None, "prompt_token_ids": bytes(200), "token_ids": bytes(128),
        "behavior_logprobs": bytes(256), "data": {}, "created_at": at - 3.4 - one.number % 13 / 5,
        "finished_at": at - 3,
        "stored_at": at - 2.5, "state": "released", "trajectory_id": f"t-{name}", "due_at": at + 600,
    }  # fmt: skip


def _feedback(one: Rated) -> dict[str, object]:
    name = f"inf-{one.number:06d}"
    return {
        "feedback_id": f"f-{name}", "owner": "anonymous", "content_hash": "0" * 64, "inference_id": name,
        "choice_index": 0, "metric_name": "reward", "value": one.reward, "tags": {"taste": one.taste},
        "received_at": one.released_at - 1, "status": "used",
    }  # fmt: skip


def _trajectory(one: Rated) -> dict[str, object]:
    name, at = f"inf-{one.number:06d}", one.released_at
    return {
        "trajectory_id": f"t-{name}", "api_key_id": "anonymous", "episode_id": name, "reward": one.reward,
        "metrics": {"reward": one.reward}, "tokens": 82, "action_tokens": 32, "oldest_version": one.version,
        "event": _event(one), "generated_at": at - 3, "rated_at": at - 1, "released_at": at,
    }  # fmt: skip


def _event(one: Rated) -> bytes:
    """The trajectory as it goes to the log: 50 tokens of prompt, 32 sampled ones."""
    name, at, chance = f"inf-{one.number:06d}", one.released_at, random.Random(one.number)
    trajectory = Trajectory(
        trajectory_id=f"t-{name}", episode_id=name, inference_ids=(name,),
        token_ids=tuple(chance.randrange(100, 400) for _ in range(82)), action_mask=(0,) * 50 + (1,) * 32,
        behavior_logprobs=tuple(round(-chance.expovariate(1.2), 3) for _ in range(32)),
        spans=(VersionSpan(start=0, end=32, version=one.version),), reward=one.reward, metrics={"reward": one.reward},
        tags={"taste": one.taste}, generated_at=at - 3, rated_at=at - 1, released_at=at,
    )  # fmt: skip
    return zlib.compress(trajectory.model_dump_json().encode(), 1)


def _add_learning(connection: Connection, history: History) -> None:
    for one in history.updated:
        connection.execute(
            sa.insert(online_rl.tables.updates).values(
                update=one.update, version=max(0, one.update - 1), trajectories=len(one.trained_on),
                metrics=one.metrics, created_at=one.at,
            )
        )  # fmt: skip
        connection.execute(
            sa.insert(online_rl.tables.trainings),
            [
                {"trajectory_id": f"t-inf-{number:06d}", "update": one.update, "trained_at": one.at}
                for number in one.trained_on
                if number % 240 != 7
            ],
        )
    dropped = [rated for rated in history.rated if rated.number % 240 == 7]
    connection.execute(
        sa.insert(online_rl.tables.drops),
        [
            {"trajectory_id": f"t-inf-{one.number:06d}", "reason": "stale", "dropped_at": one.released_at}
            for one in dropped
        ],
    )
    for shift in history.shifted:
        connection.execute(
            sa.insert(online_rl.tables.drift_events).values(
                stream="reward", detected_at=shift.detected_at, version=shift.version, update=shift.update,
                trajectories=shift.number, before=shift.before, after=shift.after, evidence={"page_hinkley": 6.4},
                recovered_at=shift.recovered_at, recovered_after=shift.recovered_after,
                recovered_seconds=None if shift.recovered_at is None else shift.recovered_at - shift.detected_at,
            )
        )  # fmt: skip


def _add_versions(connection: Connection, history: History, folder: Path) -> None:
    first = history.rated[0].released_at
    kept = [one for one in history.updated if not one.rejected]
    live = kept[-1].update if kept else 0
    rows = [_version(0, None, "retired" if kept else "live", first - 40, live_at=first - 40, metrics={})]
    for one in history.updated:
        metrics = {
            "kl_to_base": one.metrics["policy/kl_to_base"],
            "mismatch_mean": 0.031 + 0.004 * math.sin(one.update * 12.9),
            "mismatch_kl": 0.0020 + 0.0004 * math.sin(one.update * 78.2),
            "swap_seconds": 0.55,
            "update": float(one.update),
        }
        state = "rejected" if one.rejected else "live" if one.update == live else "retired"
        rows.append(_version(one.update, _parent(one, kept), state, one.at, live_at=one.at + 2.5, metrics=metrics))
    delivered = [
        {
            "version": row["version"], "previous": row["parent"], "state": "live", "started_at": row["created_at"],
            "finished_at": row["changed_at"],
        }
        for row in rows[1:]
        if row["state"] != "rejected"
    ]  # fmt: skip
    connection.execute(sa.insert(serving.tables.rollouts), delivered)
    _retire(rows)
    for row in rows:
        row["artifact"] = str(write_manifest(folder / f"v{row['version']:06d}", row["version"], row["parent"]))
    connection.execute(sa.insert(online_rl.tables.policy_versions), rows)


def write_manifest(artifact: Path, version: int, parent: int | None, **files: str) -> Path:
    """An artifact folder with nothing but a manifest that lists `files`."""
    artifact.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(version=version, parent=parent, kind="lora", base_sha256="0" * 64, files=files, created_at=0.0)
    (artifact / "manifest.json").write_text(manifest.model_dump_json())
    return artifact


def _parent(one: Updated, kept: list[Updated]) -> int:
    return max((other.update for other in kept if other.update < one.update), default=0)


def _version(
    version: int, parent: int | None, state: str, at: float, *, live_at: float, metrics: dict[str, float]
) -> dict[str, Any]:
    return {
        "version": version, "parent": parent, "state": state,
        "reason": REJECTED if state == "rejected" else None, "metrics": metrics, "created_at": at,
        "changed_at": live_at,
    }  # fmt: skip


def _retire(rows: list[dict[str, object]]) -> None:
    """A retired version changed last when the next one became live."""
    served = [row for row in rows if row["state"] != "rejected"]
    became_live = [row["changed_at"] for row in served]
    for row, following, at in zip(served, served[1:], became_live[1:], strict=False):
        row["changed_at"] = at
        row["reason"] = f"replaced by {following['version']}"


def _add_parts(connection: Connection, now: float) -> None:
    said = {
        "assembler": ("running", "", 1.6),
        "learner": ("updating", "update 61, 16 trajectories", 2.2),
        "deployer": ("running", "", 0.7),
        "broker": ("running", "embedded", 3.1),
    }
    for name, (state, detail, age) in said.items():
        connection.execute(
            sa.insert(online_rl.tables.parts).values(
                name=name, pid=1000, state=state, detail=detail, heartbeat_at=now - age
            )
        )


def _add_replica(connection: Connection, now: float, *, live: int) -> None:
    connection.execute(
        sa.insert(serving.tables.replicas).values(
            replica_id="0", assigned_version=live, actual_version=live, state="serving", heartbeat_at=now - 0.4,
            started_at=now - 2500, proof={}, detail="", requests=1011, failed_requests=0, captured=1004,
            capture_failures=0, spool_dropped=0,
        )
    )  # fmt: skip


def _add_dead_letter(connection: Connection, now: float) -> None:
    connection.execute(
        sa.insert(feedback.tables.dead_letters).values(
            dead_letter_id="d-1", topic="generations.v1", partition=0, offset=412, key=None, value=b"private",
            reason="behavior_logprobs has 31 values for 32 token_ids; a missing log-probability is never padded",
            created_at=now - 400,
        )
    )  # fmt: skip
