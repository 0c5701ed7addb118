"""`up`: start every part, watch over them, stop them all.

The policy engine takes longest by far (about 40 s), so it is started as early as it can be, and what the first answer
does not need waits for it: the learner starts last, because two cores cannot load two models sooner than one.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import Engine

from feedback.database import ANY_FAULT, DatabaseUnavailable, check_database, open_database
from online_rl.config import Settings
from online_rl.heartbeat import beat
from online_rl.registry import Registry
from online_rl.service import cluster, database
from online_rl.service.actors import PARTS, Part, start_part, stop_parts
from online_rl.service.broker import BrokerError, EmbeddedBroker
from online_rl.service.checks import before_start
from online_rl.service.log_bounds import bound_logs
from online_rl.service.processes import ServiceLock, adopt_orphans, end_children
from online_rl.service.worker_setup import log_to_file

log = logging.getLogger(__name__)

START_SECONDS = 600.0
STOP_PART_SECONDS = 10.0
END_SECONDS = 5.0
WATCH_SECONDS = 1.0
LEARNER = "learner"
ASSEMBLER = "assembler"

Say = Callable[[str], None]


class StartError(Exception):
    """The service cannot start. The message says what to do; nothing is left running."""


class Supervisor:
    """One running service. `start`, then `watch` until `request_stop`, then `stop` (which is always safe to call)."""

    def __init__(self, settings: Settings, say: Say) -> None:
        # The parts may run in another folder, on a real cluster surely: what they get holds no relative path.
        settings = settings.model_copy(
            update={
                "data_dir": settings.data_dir.absolute(),
                "models_dir": settings.models_dir.absolute(),
                "auth": settings.auth.model_copy(update={"signing_key_file": settings.signing_key_file.absolute()}),
                "serving": settings.serving.model_copy(update={"model": settings.model_path}),
            }
        )
        self.settings = settings
        self.logs = settings.data_dir / "logs"
        self.bootstrap_servers = settings.kafka.bootstrap_servers or ""
        self.started_at = time.monotonic()
        self._say = say
        self._lock = ServiceLock(settings.data_dir)
        self._stop = threading.Event()
        self._broker: EmbeddedBroker | None = None
        self._engine: Engine | None = None
        self._actors: dict[str, Any] = {}
        self._serving = False
        self._clean = True

    def request_stop(self) -> None:
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def start(self) -> None:
        """Returns once the policy answers. Raises StartError or AlreadyRunning; then nothing was left running."""
        self._check()
        self._clean = False
        adopt_orphans()
        log_to_file(self.logs, "supervisor")
        cluster.prepare_environment(self.settings)
        try:
            self._start_all()
        except (cluster.ClusterError, BrokerError, database.SchemaTooNew, DatabaseUnavailable) as error:
            raise StartError(f"{error}\n(logs: {self.logs})") from error

    def _check(self) -> None:
        # The lock comes first: a second start must hear of the first one, not of its port.
        try:
            self.settings.data_dir.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            self._lock.acquire(self.settings.url)
        except OSError as error:
            raise StartError(
                f"data_dir: {self.settings.data_dir.absolute()} cannot be written ({error.strerror}); "
                "set data_dir to a folder that you own"
            ) from error
        problems = [str(finding) for finding in before_start(self.settings) if finding.level == "problem"]
        if problems:
            self._leave_no_trace()
            raise StartError("\n".join(problems))

    def _leave_no_trace(self) -> None:
        """Remove what `_check` made, unless there was something before."""
        for folder in (self.logs, self.settings.data_dir):
            if folder == self.settings.data_dir and [path.name for path in folder.iterdir()] == ["service.lock"]:
                self._lock.release(remove=True)
            if not any(folder.iterdir()):
                folder.rmdir()

    def _start_all(self) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="start") as pool:
            prepared = pool.submit(self._prepare_log_and_database)
            # In the main thread: the kernel ends Ray's processes when the thread that started them ends.
            cluster.start_ray(self.settings, self.logs)
            prepared.result()
        self._say_ready("ray")
        learner = [part for part in PARTS if part.name == LEARNER]
        others = [part for part in PARTS if part.name != LEARNER]
        for step in (
            lambda: cluster.start_serve(self.settings),
            self._deploy_policy,
            self._deploy_rest,
            lambda: self._start_parts(others),
            self._wait_for_applications,
            lambda: self._start_parts(learner),
        ):
            if self.stopping:
                return
            step()

    def _prepare_log_and_database(self) -> None:
        self._start_broker()
        self._prepare_database()

    def _start_broker(self) -> None:
        if self.settings.kafka.bootstrap_servers is not None:
            return
        self._broker = EmbeddedBroker(self.logs / "broker.log", self.settings.kafka.embedded_port)
        self._broker.start()
        self.bootstrap_servers = self._broker.bootstrap_servers
        self._say_ready("broker")

    def _prepare_database(self) -> None:
        self._engine = open_database(self.settings.database_url)
        check_database(self._engine)
        database.upgrade(self._engine)
        Registry(self._engine).ensure_base(self.settings.model_path)
        self._say_ready("database")

    def _deploy_policy(self) -> None:
        # Imported here: it must see the environment that was prepared for Ray.
        from serving.app import policy_application

        cluster.deploy({cluster.POLICY: policy_application(self.settings, self.bootstrap_servers)})

    def _wait_for_applications(self) -> None:
        cluster.wait_running(set(cluster.ROUTES), self._say_application, self._stop.is_set, START_SECONDS)

    def _say_application(self, name: str) -> None:
        self._serving = self._serving or name == cluster.POLICY
        self._say_ready(name)

    def _deploy_rest(self) -> None:
        from feedback.app import feedback_application, inferences_application
        from online_rl.dashboard.app import ops_application

        cluster.deploy(
            {
                "feedback": feedback_application(self.settings),
                "inferences": inferences_application(self.settings),
                "operations": ops_application(self.settings),
            }
        )

    def _start_parts(self, parts: list[Part]) -> None:
        for part in parts:
            self._actors[part.name] = start_part(part, self.settings, self.bootstrap_servers, self.logs)

    def _say_ready(self, name: str) -> None:
        self._say(f"{name:<12} ready after {time.monotonic() - self.started_at:5.1f} s")

    def watch(self) -> None:
        """Blocks until `request_stop`; says when the broker had to be started again, and that this process lives.

        Keeps the log files in bounds meanwhile.
        """
        restarts = 0
        while not self._stop.wait(WATCH_SECONDS):
            if self._broker is not None and self._broker.restarts != restarts:
                restarts = self._broker.restarts
                self._say(f"broker       died and was started again ({restarts} so far)")
            self._beat()
            self._bound_logs()

    def _bound_logs(self) -> None:
        try:
            bound_logs(self.logs)
        except OSError as error:  # another user's file, or one that was removed meanwhile
            log.warning("a log file is not in bounds: %s", error)

    def _beat(self) -> None:
        assert self._engine is not None
        try:
            beat(self._engine, "supervisor", "running")
            if self._broker is not None:
                state = "running" if self._broker.pid else "restarting"
                beat(
                    self._engine, "broker", state, f"{self._broker.bootstrap_servers}, {self._broker.restarts} restarts"
                )
        except ANY_FAULT as error:
            log.warning("no heartbeat: %s", type(error).__name__)

    def stop(self) -> None:
        """End every part and every process below this one. Requests in flight may finish; then the broker goes."""
        self._stop.set()
        if not self._clean:
            self._clean = True
            self._stop_parts()
            cluster.stop_ray()
            if self._broker is not None:
                self._broker.stop()
            left = end_children(END_SECONDS)
            log.info("stopped; %d processes had to be ended", len(left))
        if self._engine is not None:
            self._engine.dispose()
        self._lock.release()

    def _stop_parts(self) -> None:
        """Against the stream, but for the assembler: the replicas send what they captured last when they end, and it
        stores that before it ends itself."""
        assembler = [actor for name, actor in self._actors.items() if name == ASSEMBLER]
        stop_parts([actor for name, actor in self._actors.items() if name != ASSEMBLER], STOP_PART_SECONDS)
        if self._serving:
            cluster.stop_policy()
        stop_parts(assembler, STOP_PART_SECONDS)


def handle_signals(supervisor: Supervisor, say: Say) -> None:
    """Ctrl-C and SIGTERM stop the service in order; a second one changes nothing, stopping takes a few seconds."""

    def on_signal(_number: int, _frame: Any) -> None:
        if not supervisor.stopping:
            say("stopping ...")
        supervisor.request_stop()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
