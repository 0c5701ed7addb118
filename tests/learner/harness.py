"""The learning loop on the tiny model, with a real database, real files and a fake log."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from online_rl.checkpoint import Checkpoints
from online_rl.drift import DriftMonitor
from online_rl.learner import restore
from online_rl.ledger import Ledger
from online_rl.loop import LearnerLoop
from online_rl.publish import Publisher
from online_rl.registry import Registry
from online_rl.settings import DriftSettings, LearnerSettings, ResponseSettings
from online_rl.tables import metadata
from online_rl.trainer import Trainer
from tests.learner.fakes import FakeLog, FakeRecord
from tests.learner.tiny import SETTINGS, make_models, make_trajectories


@dataclass
class Service:
    loop: LearnerLoop
    trainer: Trainer
    registry: Registry
    engine: sa.Engine
    log: FakeLog
    publisher: Publisher
    buried: list[tuple[FakeRecord, str]]

    def column(self, query: sa.Select) -> list:
        with self.engine.connect() as connection:
            return list(connection.scalars(query))


def make_service(
    folder: Path,
    model_folder: Path,
    log: FakeLog | None = None,
    settings: LearnerSettings = SETTINGS,
    clock: Callable[[], float] = lambda: 0.0,
    response: ResponseSettings | None = None,
) -> Service:
    """A learner on `folder`; made again on the same folder, it is the learner after a restart.

    Without `log` it reads a log of 24 trajectories.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if log is None:
        log = FakeLog()
        log.append(*make_trajectories(24))
    engine = sa.create_engine(f"sqlite:///{folder / 'test.db'}")
    metadata.create_all(engine)
    policy, value = make_models(model_folder)
    publisher = Publisher(folder / "versions", model_folder, policy, write_merged=True)
    trainer = Trainer(policy, value, settings)
    checkpoints = Checkpoints(folder / "checkpoints", 2)
    restored = restore(trainer, publisher, checkpoints)
    registry = Registry(engine)
    registry.ensure_base(str(model_folder))
    same = restored is not None and restored.log_identity == f"log-{log.generation}"
    buried: list[tuple[FakeRecord, str]] = []
    loop = LearnerLoop(
        source=log.source(restored.offsets if restored is not None and same else {}),
        trainer=trainer,
        publisher=publisher,
        registry=registry,
        ledger=Ledger(engine),
        checkpoints=checkpoints,
        drift=DriftMonitor(DriftSettings(), restored.drift if restored else None),
        bury=lambda record, reason: buried.append((record, reason)),  # pyright: ignore[reportArgumentType]
        settings=settings,
        response=response or ResponseSettings(),
        restored=restored,
        clock=clock,
    )
    return Service(loop, trainer, registry, engine, log, publisher, buried)
