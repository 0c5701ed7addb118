"""The deployer's state machine: candidate → assigned to every replica → proved by every replica → live, or rejected.

It only moves rows, one transaction a step, and reads where it stands from the rows each time: killed anywhere, the
next one goes on from there.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from online_rl.schemas import PolicyVersion, VersionState
from serving.tables import replicas, rollouts

logger = logging.getLogger(__name__)

ALIVE_SECONDS = 15.0
"""A replica whose heartbeat is older counts as dead: it loads the live version when it comes back."""
ROLLOUT_SECONDS = 300.0
"""Longest that living replicas may take to prove a candidate, from when it was last assigned to any of them."""


class VersionRegistry(Protocol):
    def live(self) -> PolicyVersion | None: ...
    def get(self, version: int) -> PolicyVersion: ...
    def list(self) -> Sequence[PolicyVersion]: ...
    def transition(
        self,
        version: int,
        to: VersionState,
        *,
        reason: str | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> PolicyVersion: ...

    def roll_back(self, to: int, *, reason: str) -> PolicyVersion: ...


class Rollouts:
    """Steps of the deployer. `step` does at most one thing and says what."""

    def __init__(self, engine: sa.Engine, registry: VersionRegistry, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._reader = engine.execution_options(online_rl_read_only=True)
        self._registry = registry
        self._clock = clock

    def step(self) -> str | None:
        """Do the next thing there is to do; None when there is nothing. Raises what SQLAlchemy raises."""
        running = self._running()
        if running is not None:
            return self._pursue(running)
        live = self._registry.live()
        if live is None:
            return None
        candidates = [known.version for known in self._registry.list() if known.state is VersionState.CANDIDATE]
        if candidates:
            return self._begin(candidates, live.version)
        return self._reconcile(live.version)

    def _begin(self, candidates: Sequence[int], live: int) -> str:
        *older, newest = sorted(candidates)
        for version in older:
            self._registry.transition(version, VersionState.REJECTED, reason="superseded")
        with self._engine.begin() as connection:
            connection.execute(
                sa.insert(rollouts).values(version=newest, previous=live, state="running", started_at=self._clock())
            )
            connection.execute(sa.update(replicas).values(assigned_version=newest, refused_version=None))
        return f"version {newest} is assigned to every replica"

    def _pursue(self, rollout: Mapping[str, Any]) -> str | None:
        version = rollout["version"]
        state = self._registry.get(version).state
        if state is VersionState.LIVE:  # killed between the two steps of a promotion, or promoted by hand
            return self._finish(rollout, "live", None, assign=version)
        if state is not VersionState.CANDIDATE:
            return self._finish(rollout, "refused", f"version {version} is {state}", assign=self._live_or(rollout))
        live = self._live_or(rollout)
        if live != rollout["previous"]:
            return self._refuse(rollout, f"version {live} was made live by hand meanwhile")
        if self._include_joined(rollout):
            return f"version {version} is assigned to replicas that joined meanwhile"
        alive = self._alive()
        refusals = [row for row in alive if row["refused_version"] == version]
        if refusals:
            return self._refuse(rollout, refusals[0]["detail"])
        if alive and all(row["actual_version"] == version and row["state"] == "serving" for row in alive):
            self._registry.transition(version, VersionState.LIVE, metrics=_proof_metrics(alive))
            return self._finish(rollout, "live", None, assign=version)
        if self._clock() - rollout["started_at"] > ROLLOUT_SECONDS and alive:
            return self._refuse(rollout, f"not every replica proved it within {ROLLOUT_SECONDS:.0f} s")
        return None

    def _include_joined(self, rollout: Mapping[str, Any]) -> bool:
        """Assign the candidate to slots that registered after it was assigned, with the whole time to prove it.

        A slot joins a rollout once: one that starts again finds its assignment, and gets no more time.
        """
        if not self._any_unassigned(rollout["version"]):
            return False
        with self._engine.begin() as connection:
            connection.execute(
                sa.update(replicas)
                .where(replicas.c.assigned_version != rollout["version"])
                .values(assigned_version=rollout["version"], refused_version=None)
            )
            connection.execute(
                sa.update(rollouts).where(rollouts.c.id == rollout["id"]).values(started_at=self._clock())
            )
        return True

    def _refuse(self, rollout: Mapping[str, Any], reason: str) -> str:
        self._registry.transition(rollout["version"], VersionState.REJECTED, reason=reason[:2000])
        return self._finish(rollout, "refused", reason, assign=self._live_or(rollout))

    def _finish(self, rollout: Mapping[str, Any], state: str, reason: str | None, *, assign: int) -> str:
        with self._engine.begin() as connection:
            connection.execute(
                sa.update(rollouts)
                .where(rollouts.c.id == rollout["id"])
                .values(state=state, reason=reason, finished_at=self._clock())
            )
            connection.execute(sa.update(replicas).values(assigned_version=assign))
        return f"version {rollout['version']} is {state}" + (f": {reason}" if reason else "")

    def _reconcile(self, live: int) -> str | None:
        """What was promoted or rolled back by hand reaches the replicas here, and is undone where one refuses it."""
        for row in self._alive():
            if row["refused_version"] == live and row["actual_version"] not in (None, live):
                reason = f"a replica refused version {live}: {row['detail']}"
                live = self._registry.roll_back(row["actual_version"], reason=reason[:2000]).version
                break
        if not self._any_unassigned(live):
            return None
        with self._engine.begin() as connection:
            connection.execute(sa.update(replicas).values(assigned_version=live, refused_version=None))
        return f"version {live} is assigned to every replica"

    def _any_unassigned(self, version: int) -> bool:
        others = sa.select(sa.func.count()).select_from(replicas).where(replicas.c.assigned_version != version)
        with self._reader.connect() as connection:
            return bool(connection.scalar(others))

    def _live_or(self, rollout: Mapping[str, Any]) -> int:
        live = self._registry.live()
        return rollout["previous"] if live is None else live.version

    def _running(self) -> Mapping[str, Any] | None:
        with self._reader.connect() as connection:
            row = connection.execute(sa.select(rollouts).where(rollouts.c.state == "running")).first()
        return None if row is None else dict(row._mapping)

    def _alive(self) -> list[Mapping[str, Any]]:
        with self._reader.connect() as connection:
            rows = connection.execute(
                sa.select(replicas).where(replicas.c.heartbeat_at > self._clock() - ALIVE_SECONDS)
            )
            return [dict(row._mapping) for row in rows]


def _proof_metrics(alive: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The worst over the replicas of what they measured."""
    metrics: dict[str, float] = {}
    for row in alive:
        proof = row["proof"] or {}
        verdict = proof.get("verdict") or {}
        found = {
            "mismatch_mean": verdict.get("mismatch_mean"),
            "mismatch_kl": verdict.get("mismatch_kl"),
            "swap_seconds": proof.get("seconds"),
            "stalled_seconds": proof.get("stalled_seconds"),
        }
        for name, value in found.items():
            if value is not None:
                metrics[name] = max(float(value), metrics.get(name, float("-inf")))
    return metrics
