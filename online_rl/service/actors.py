"""The parts that are not HTTP: each runs its blocking main in an actor, which Ray starts again when it dies."""

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedback.database import UNAVAILABLE, open_database
from online_rl.config import Settings
from online_rl.heartbeat import beat
from online_rl.service.worker_setup import log_to_file

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
MIN_LIFE_SECONDS = 3.0
"""A main that fails at once is not started again sooner than this, or it would spin."""


@dataclass(frozen=True, slots=True)
class Part:
    """One background part of the service."""

    name: str
    main: str
    """``module:function``; called with the settings, the broker where `needs_broker`, and the stop event."""
    needs_broker: bool
    nice: int = 0
    """Added to the process's niceness: 19 takes only what others leave."""


PARTS = (
    Part("assembler", "feedback.assembler_main:run_assembler", needs_broker=True, nice=2),
    Part("deployer", "serving.deployer:run_deployer", needs_broker=False),
    Part("learner", "online_rl.learner:run_learner", needs_broker=True, nice=10),
)


def find_main(path: str) -> Callable[..., None]:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


class PartActor:
    """Runs one part until `stop`. When its main ends by itself or fails, the process ends, and Ray starts another."""

    def __init__(self, part: Part, settings: Settings, bootstrap_servers: str, logs: Path) -> None:
        os.nice(part.nice)
        log_to_file(logs, part.name)
        # Ray sets this to 1 for actors with less than a core; what computes here chooses its own number of threads.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._part = part
        self._settings = settings
        self._arguments: list[Any] = [settings, bootstrap_servers] if part.needs_broker else [settings]
        self._stop = threading.Event()
        self._main = threading.Thread(target=self._run, name=part.name, daemon=True)
        self._main.start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def pid(self) -> int:
        return os.getpid()

    def stop(self, seconds: float) -> bool:
        """Ask the main to end; True when it did within `seconds`."""
        self._stop.set()
        self._main.join(seconds)
        return not self._main.is_alive()

    def _run(self) -> None:
        started = time.monotonic()
        log.info("%s starts (process %d)", self._part.name, os.getpid())
        try:
            find_main(self._part.main)(*self._arguments, self._stop)
        except Exception:
            log.exception("%s failed", self._part.name)
        if self._stop.is_set():
            log.info("%s ended", self._part.name)
            return
        self._stop.wait(MIN_LIFE_SECONDS - (time.monotonic() - started))
        logging.shutdown()
        os._exit(1)

    def _beat(self) -> None:
        engine = open_database(self._settings.database_url)
        while not self._stop.wait(BEAT_SECONDS):
            try:
                beat(engine, self._part.name, "running")
            except UNAVAILABLE as error:
                log.warning("no heartbeat: %s", type(error).__name__)


def start_part(part: Part, settings: Settings, bootstrap_servers: str, logs: Path) -> Any:
    """The actor's handle; returns before its main runs."""
    import ray

    actor = ray.remote(PartActor).options(
        name=part.name, num_cpus=0.1, max_restarts=-1, max_task_retries=0, max_concurrency=4
    )
    return actor.remote(part, settings, bootstrap_servers, logs)


def stop_parts(actors: list[Any], seconds: float) -> None:
    """Let every part end what it does, all at the same time, for at most `seconds`."""
    import ray

    asked = [actor.stop.remote(seconds) for actor in actors]
    ray.wait(asked, num_returns=len(asked), timeout=seconds + 1) if asked else None
