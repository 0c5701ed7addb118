"""The learner's process: puts the parts of the loop together and keeps it going until it is told to stop."""

import logging
import os
import threading
import time
from pathlib import Path

import sqlalchemy as sa
import torch

from feedback.database import UNAVAILABLE, open_database
from feedback.dead_letters import bury
from feedback.kafka_consumer import LogConsumer
from feedback.kafka_log import KafkaLog
from feedback.log_contract import LogUnavailable
from feedback.replays import ReplayingConsumer
from feedback.schemas import TRAJECTORIES_TOPIC, Message
from online_rl.base_model import choose_device, choose_dtype, choose_threads, find_model
from online_rl.checkpoint import CheckpointNotSaved, Checkpoints, LearnerState
from online_rl.config import Settings
from online_rl.drift import DriftMonitor
from online_rl.heartbeat import beat
from online_rl.ledger import Ledger
from online_rl.loop import LearnerLoop, restore_counters
from online_rl.models import build_models
from online_rl.pretrained_value import NAME, PretrainedValueError, load_pretrained
from online_rl.publish import Publisher, choose_write_merged
from online_rl.registry import Registry
from online_rl.trainer import Trainer

logger = logging.getLogger(__name__)

NICENESS = 10
RETRY_SECONDS = 2.0
DISK_SECONDS = 10.0
"""Until a checkpoint that the disk refused is tried again."""
FROZEN_SECONDS = 1.0
BEAT_SECONDS = 2.0
GROUP = "learner"


class BaseChanged(RuntimeError):
    """The checkpoint belongs to another base model."""


def run_learner(settings: Settings, bootstrap_servers: str, stop: threading.Event) -> None:
    """Learn until `stop` is set. Goes on when the log, the database or room on the disk is back; other errors end it.

    Raises UnusableModel, CheckpointError, BaseChanged, OSError.
    """
    yield_to_serving(settings)
    engine = open_database(settings.database_url)
    status = Status(engine)
    log = KafkaLog(
        bootstrap_servers,
        client_id="learner",
        topic_prefix=settings.kafka.topic_prefix,
        security=settings.kafka.security,
        replication_factor=settings.kafka.replication_factor,
        retention_ms=settings.kafka.retention_ms,
    )
    source: ReplayingConsumer | None = None
    try:
        status.say("loading the models")
        trainer, publisher = build_trainer(settings)
        checkpoints = Checkpoints(settings.data_dir / "checkpoints", settings.learner.keep_checkpoints)
        restored = restore(trainer, publisher, checkpoints)
        pretrained = adopt_value(trainer, publisher.base_sha256, settings, restored)
        registry = Registry(engine)
        while (opened := open_source(log, restored)) is None:
            status.say("waiting for the log")
            if stop.wait(RETRY_SECONDS):
                return
        source = ReplayingConsumer(opened, TRAJECTORIES_TOPIC, engine)
        loop = LearnerLoop(
            source=source,
            trainer=trainer,
            publisher=publisher,
            registry=registry,
            ledger=Ledger(engine),
            checkpoints=checkpoints,
            drift=DriftMonitor(settings.drift, restored.drift if restored else None),
            bury=lambda record, reason: bury_message(engine, record, reason),
            settings=settings.learner,
            response=settings.response,
            restored=restored,
            pretrained_value=pretrained,
        )
        source.waiting = loop.waiting_offsets
        ensure_base(registry, settings, stop)
        while not stop.is_set():
            pause = run_round(loop, registry, status)
            stop.wait(pause)
    finally:
        if source is not None:
            source.close()
        log.close()
        engine.dispose()


def run_round(loop: LearnerLoop, registry: Registry, status: "Status") -> float:
    """One round of the loop; returns the seconds to pause after it."""
    try:
        updated = loop.round()
        if not updated and registry.frozen():
            status.say("frozen by the operator")
            return FROZEN_SECONDS
        status.say("; ".join(filter(None, [_progress(loop), loop.rolled_back])))
    except CheckpointNotSaved as error:
        logger.error("%s", error)
        status.say(f"{_progress(loop)}; {error}")
        return DISK_SECONDS
    except LogUnavailable as error:
        logger.warning("%s", error)
        status.say("the log is away")
        return RETRY_SECONDS
    except UNAVAILABLE as error:
        logger.warning("the database is away: %s", type(error).__name__)
        return RETRY_SECONDS
    return 0.0


def _progress(loop: LearnerLoop) -> str:
    return f"{loop.updates} updates, {loop.waiting} trajectories waiting"


def build_trainer(settings: Settings) -> tuple[Trainer, Publisher]:
    """The models with what trains and publishes them. Raises UnusableModel."""
    folder = find_model(settings.model_path)
    learner = settings.learner
    device = choose_device(learner)
    dtype = choose_dtype(learner, device)
    logger.info("training %s on %s in %s with %d threads", folder.name, device, dtype, torch.get_num_threads())
    policy, value = build_models(folder, device, dtype, learner)
    publisher = Publisher(
        settings.data_dir / "versions",
        folder,
        policy,
        write_merged=choose_write_merged(settings.swap.mode),
    )
    return Trainer(policy, value, learner), publisher


def restore(trainer: Trainer, publisher: Publisher, checkpoints: Checkpoints) -> LearnerState | None:
    """Go back to the newest checkpoint, if there is one. Raises CheckpointError, BaseChanged."""
    found = checkpoints.load()
    if found is None:
        return None
    state, tensors = found
    if state.base_sha256 != publisher.base_sha256:
        raise BaseChanged("the checkpoints in data_dir belong to another base model; use another data_dir for this one")
    try:
        trainer.load(tensors)
    except (KeyError, RuntimeError) as error:
        raise BaseChanged(
            f"the checkpoint was made under another learner.lora_rank, lora_targets, policy_weights, value_model or "
            f"value_attention, or under an objective, {state.objective}, that keeps a value model where this one keeps "
            f"none (or the other way round); set them back, or use another data_dir: {error}"
        ) from error
    if state.objective == trainer.objective.name:
        trainer.load_baseline(state.baseline)
    else:
        logger.warning("learner.objective was %s: what its baseline remembered is left behind", state.objective)
    trainer.counters = restore_counters(state)
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state.random_state), dtype=torch.uint8))
    logger.info("resumed at update %d", state.update)
    return state


def adopt_value(trainer: Trainer, base_sha256: str, settings: Settings, restored: LearnerState | None) -> str | None:
    """Begin with the value weights of `online-rl pretrain-value`, unless the checkpoint has taken them before.

    Returns the hash of those taken last. Raises PretrainedValueError.
    """
    taken = None if restored is None else restored.pretrained_value
    if trainer.value is None:
        return taken
    if settings.learner.pretrained_value != "ignore" and (found := load_pretrained(settings.data_dir)) is not None:
        if found.base_sha256 != base_sha256:
            raise PretrainedValueError(f"{NAME} in data_dir belongs to another base model; remove it or pretrain again")
        if found.sha256 != taken:
            try:
                trainer.value.load_model(found.tensors)
            except (KeyError, RuntimeError) as error:
                raise PretrainedValueError(
                    f"{NAME} in data_dir was made under another learner.value_model, value_attention or lora_rank; "
                    f"remove it or pretrain again: {error}"
                ) from error
            taken = found.sha256
            logger.info("the value model begins with the pretrained weights of %s", settings.data_dir / NAME)
    trainer.value.is_ready = taken is not None and settings.learner.pretrained_value == "use"
    return taken


def open_source(log: KafkaLog, restored: LearnerState | None) -> LogConsumer | None:
    """The log from where the checkpoint stands; from its beginning where there is none, or where it was emptied."""
    try:
        log.ensure_topics([TRAJECTORIES_TOPIC])
        same = restored is not None and log.identity(TRAJECTORIES_TOPIC) == restored.log_identity
        offsets = restored.offsets if restored is not None and same else {}
        return log.consumer(TRAJECTORIES_TOPIC, group=GROUP, offsets=offsets)
    except LogUnavailable as error:
        logger.warning("%s", error)
        return None


def ensure_base(registry: Registry, settings: Settings, stop: threading.Event) -> None:
    """Register version 0, waiting for the database."""
    while not stop.is_set():
        try:
            registry.ensure_base(str(Path(settings.model_path)))
            return
        except UNAVAILABLE as error:
            logger.warning("the database is away: %s", type(error).__name__)
            stop.wait(RETRY_SECONDS)


def bury_message(engine: sa.Engine, record: Message, reason: str) -> None:
    with engine.begin() as connection:
        bury(connection, record, reason, time.time())


def yield_to_serving(settings: Settings) -> None:
    """On a CPU, answers come first: low priority, and no more threads than are free of the engine's."""
    if choose_device(settings.learner).type == "cpu":
        os.nice(max(0, NICENESS - os.nice(0)))
        torch.set_num_threads(choose_threads(settings.learner))


class Status:
    """Says what the learner does, in its row of `parts`; a database that is away keeps it from nothing."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._said = ""
        self._at = float("-inf")

    def say(self, detail: str) -> None:
        now = time.monotonic()
        if detail == self._said and now - self._at < BEAT_SECONDS:
            return
        self._said, self._at = detail, now
        try:
            beat(self._engine, "learner", "running", detail)
        except UNAVAILABLE as error:
            logger.warning("no heartbeat: %s", type(error).__name__)
