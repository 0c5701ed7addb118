"""What a user may ask for: where their data went, and that it goes. The record, the log and the versions' files."""

from collections.abc import Sequence
from functools import cached_property

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine

from feedback.database import read_only
from feedback.erasure import Eraser
from feedback.tables import feedback, generations
from feedback.tombstones import hash_sequence, name_erased
from online_rl.config import Settings
from online_rl.dashboard.lineage import learned_from, read_user, trajectories_of_user
from online_rl.dashboard.lineage_records import DataLineage, LearnedVersion
from online_rl.erased_probes import scrub_probes
from online_rl.ledger import stop_training
from online_rl.registry import Registry
from online_rl.schemas import VersionState
from serving.inference_ids import load_or_create_secret
from serving.schemas import check_text

_DELIVERABLE = frozenset({VersionState.LIVE, VersionState.RETIRED, VersionState.ROLLED_BACK})


class NoSigningKey(RuntimeError):
    """The key that names erased users is not here."""


class InvalidUser(ValueError):
    """No user can have this id."""


class ErasureReport(BaseModel):
    """What was erased now (a repetition finds nothing more), and what cannot be: what was learned from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user_name: str
    """What stands in the user's place."""
    answers: int
    feedback: int
    trajectories: int
    kept_from_training: int
    dead_letters: int
    probes: int
    """Copies of answers in the files of versions."""
    probes_kept: list[int]
    """Versions in use that only the user's answers can prove: erase again once another one is live."""
    undeliverable: list[int]
    """Former versions that have no probe left, and cannot be promoted any more."""
    versions: list[LearnedVersion]
    """Those that learned from the user's data, now and before: erasing does not unlearn."""
    unaffected: int | None
    """The newest version that did not, and that can be live."""


class UserRights:
    """Over one database and one data folder. Raises what SQLAlchemy raises; every call can be repeated."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._key_file = settings.signing_key_file

    @cached_property
    def _secret(self) -> bytes:
        if not self._key_file.is_file():
            raise NoSigningKey(
                f"auth.signing_key_file: there is no {self._key_file}; run this where the service's data_dir is"
            )
        return load_or_create_secret(self._key_file)

    def names(self, user_id: str) -> list[str]:
        """What the record may call the user: by the id, and by what stands in its place after an erasure."""
        try:
            check_text(user_id)
        except ValueError as error:
            raise InvalidUser(f"user: {error}") from None
        if not user_id:
            raise InvalidUser("user: is empty; answers without a user cannot be told apart")
        return [user_id, name_erased(user_id, self._secret)]

    def count(self, user_id: str) -> tuple[int, int]:
        """(answers, feedback) that are stored under the user's id now."""
        name = self.names(user_id)[0]
        with read_only(self._engine).connect() as connection:
            found = [
                connection.scalar(sa.select(sa.func.count()).select_from(table).where(table.c.user_id == name)) or 0
                for table in (generations, feedback)
            ]
        return found[0], found[1]

    def lineage(self, user_id: str) -> DataLineage:
        """Raises NothingKnown."""
        return read_user(self._engine, self.names(user_id))

    def erase(self, user_id: str, api_key_id: str = "") -> ErasureReport:
        """Of one API key, or (empty) of all. Raises OSError, too."""
        names = self.names(user_id)
        found = Eraser(self._engine, self._secret, stop_training).erase(user_id, api_key_id)

        def erased(token_ids: Sequence[int]) -> bool:
            return hash_sequence(token_ids, self._secret) in found.sequences

        versions = Registry(self._engine).list()
        probes = scrub_probes(versions, erased)
        with read_only(self._engine).connect() as connection:
            made = trajectories_of_user(connection, names)
        learned = learned_from(self._engine, made)
        touched = {one.version for one in learned}
        clean = [one.version for one in versions if one.state in _DELIVERABLE and one.version not in touched]
        return ErasureReport(
            user_name=names[1],
            answers=found.answers,
            feedback=found.feedback,
            trajectories=found.trajectories,
            kept_from_training=found.kept_from_training,
            dead_letters=found.dead_letters,
            probes=probes.removed,
            probes_kept=probes.kept,
            undeliverable=probes.undeliverable,
            versions=learned,
            unaffected=max((one for one in clean if one not in probes.undeliverable), default=None),
        )
