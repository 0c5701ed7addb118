"""The registry of policy versions: which weights exist, which are live, and whether learning is frozen."""

import time
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from online_rl.schemas import BASE_VERSION, TRANSITIONS, PolicyVersion, VersionState
from online_rl.tables import controls, policy_versions

_FROZEN = "learning_frozen"


class UnknownVersion(LookupError):
    """No such policy version is registered."""


class IllegalTransition(RuntimeError):
    """The version is not in a state from which the wanted one may follow, or somebody else moved it first."""


class Registry:
    """Policy versions in SQL. Every change is one transaction; at most one version is live at any time."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        # See `feedback.database.read_only`: on SQLite, reading then takes no write lock.
        self._reader = engine.execution_options(online_rl_read_only=True)

    def ensure_base(self, artifact: str) -> PolicyVersion:
        """Register the base model as version 0, live unless another version is. Safe to call at every start."""
        with self._engine.begin() as connection:
            if self._row(connection, BASE_VERSION) is None:
                state = VersionState.LIVE if self._live(connection) is None else VersionState.RETIRED
                self._insert(connection, BASE_VERSION, None, state, artifact, {})
        return self.get(BASE_VERSION)

    def next_version(self) -> int:
        """The number after the highest one registered."""
        with self._reader.connect() as connection:
            highest = connection.scalar(sa.select(sa.func.max(policy_versions.c.version)))
        return BASE_VERSION + 1 if highest is None else highest + 1

    def add_candidate(
        self, version: int, parent: int | None, artifact: str, metrics: Mapping[str, float]
    ) -> PolicyVersion:
        """Register a finished artifact as a candidate. The same call again changes nothing (a retry is safe)."""
        with self._engine.begin() as connection:
            present = self._row(connection, version)
            if present is None:
                self._insert(connection, version, parent, VersionState.CANDIDATE, artifact, metrics)
            elif present.artifact != artifact:
                raise IllegalTransition(f"version {version} is registered already, with artifact {present.artifact}")
        return self.get(version)

    def add_rejected(
        self, version: int, parent: int | None, artifact: str, metrics: Mapping[str, float], reason: str
    ) -> PolicyVersion:
        """Register a version that the publish gate held back, so that it can be seen why."""
        with self._engine.begin() as connection:
            self._insert(connection, version, parent, VersionState.REJECTED, artifact, metrics, reason)
        return self.get(version)

    def get(self, version: int) -> PolicyVersion:
        """Raises UnknownVersion."""
        with self._reader.connect() as connection:
            found = self._row(connection, version)
        if found is None:
            raise UnknownVersion(f"policy version {version} is not registered")
        return found

    def live(self) -> PolicyVersion | None:
        with self._reader.connect() as connection:
            return self._live(connection)

    def standing(self) -> int:
        """The newest version that is live or on its way there: what staleness is counted from."""
        states = (VersionState.CANDIDATE, VersionState.CANARY, VersionState.LIVE)
        query = sa.select(sa.func.max(policy_versions.c.version)).where(policy_versions.c.state.in_(states))
        with self._reader.connect() as connection:
            return connection.scalar(query) or BASE_VERSION

    def rejected(self) -> frozenset[int]:
        """Versions whose delivery failed its proof (or that never were tried)."""
        query = sa.select(policy_versions.c.version).where(policy_versions.c.state == VersionState.REJECTED)
        with self._reader.connect() as connection:
            return frozenset(connection.scalars(query))

    def list(self) -> list[PolicyVersion]:
        """All versions, oldest first."""
        with self._reader.connect() as connection:
            rows = connection.execute(sa.select(policy_versions).order_by(policy_versions.c.version))
            return [PolicyVersion.model_validate(dict(row._mapping)) for row in rows]

    def transition(
        self,
        version: int,
        to: VersionState,
        *,
        reason: str | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> PolicyVersion:
        """Move `version` to state `to`; `metrics` are added to those it has.

        Promoting to live retires the former live version in the same transaction. Raises UnknownVersion and
        IllegalTransition (see `online_rl.schemas.TRANSITIONS`).
        """
        try:
            with self._engine.begin() as connection:
                if to is VersionState.LIVE:
                    former = self._live(connection)
                    if former is not None and former.version != version:
                        self._move(connection, former.version, VersionState.RETIRED, f"replaced by {version}", None)
                self._move(connection, version, to, reason, metrics)
        except IntegrityError as error:
            raise IllegalTransition(f"another version became live while {version} was being promoted") from error
        return self.get(version)

    def roll_back(self, to: int, *, reason: str) -> PolicyVersion:
        """Make the former version `to` live and mark the live one as rolled back, in one transaction.

        Candidates are rejected in it: they come from what was rolled back, and would undo this in seconds.
        """
        with self._engine.begin() as connection:
            current = self._live(connection)
            if current is not None:
                if current.version == to:
                    raise IllegalTransition(f"version {to} is live already")
                self._move(connection, current.version, VersionState.ROLLED_BACK, reason, None)
            is_candidate = policy_versions.c.state == VersionState.CANDIDATE
            for version in connection.scalars(sa.select(policy_versions.c.version).where(is_candidate)).all():
                self._move(connection, version, VersionState.REJECTED, f"rolled back to {to}: {reason}", None)
            self._move(connection, to, VersionState.LIVE, reason, None)
        return self.get(to)

    def frozen(self) -> bool:
        """Whether an operator has stopped learning. Serving goes on."""
        with self._reader.connect() as connection:
            return bool(connection.scalar(sa.select(controls.c.value).where(controls.c.name == _FROZEN)))

    def set_frozen(self, frozen: bool, reason: str) -> None:
        values = {"value": frozen, "reason": reason, "changed_at": time.time()}
        with self._engine.begin() as connection:
            changed = connection.execute(sa.update(controls).where(controls.c.name == _FROZEN).values(values))
            if changed.rowcount == 0:
                connection.execute(sa.insert(controls).values(name=_FROZEN, **values))

    def _move(
        self,
        connection: sa.Connection,
        version: int,
        to: VersionState,
        reason: str | None,
        metrics: Mapping[str, float] | None,
    ) -> None:
        present = self._row(connection, version)
        if present is None:
            raise UnknownVersion(f"policy version {version} is not registered")
        if to not in TRANSITIONS[present.state]:
            raise IllegalTransition(f"version {version} is {present.state} and cannot become {to}")
        changed = connection.execute(
            sa.update(policy_versions)
            .where(policy_versions.c.version == version, policy_versions.c.state == present.state)
            .values(state=to, reason=reason, metrics=present.metrics | dict(metrics or {}), changed_at=time.time())
        )
        if changed.rowcount != 1:
            raise IllegalTransition(f"version {version} was moved by somebody else while it was {present.state}")

    @staticmethod
    def _insert(
        connection: sa.Connection,
        version: int,
        parent: int | None,
        state: VersionState,
        artifact: str,
        metrics: Mapping[str, float],
        reason: str | None = None,
    ) -> None:
        now = time.time()
        connection.execute(
            sa.insert(policy_versions).values(
                version=version,
                parent=parent,
                state=state,
                artifact=artifact,
                reason=reason,
                metrics=dict(metrics),
                created_at=now,
                changed_at=now,
            )
        )

    @staticmethod
    def _row(connection: sa.Connection, version: int) -> PolicyVersion | None:
        row = connection.execute(sa.select(policy_versions).where(policy_versions.c.version == version)).first()
        return None if row is None else PolicyVersion.model_validate(dict(row._mapping))

    @staticmethod
    def _live(connection: sa.Connection) -> PolicyVersion | None:
        live = sa.select(policy_versions).where(policy_versions.c.state == VersionState.LIVE)
        row = connection.execute(live).first()
        return None if row is None else PolicyVersion.model_validate(dict(row._mapping))
