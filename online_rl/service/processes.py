"""What the kernel knows about processes: who holds a port, who holds the data folder, who is still there."""

import ctypes
import fcntl
import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class AlreadyRunning(Exception):
    """A service is running on this data folder already; the message says where it answers."""


def port_holder(host: str, port: int) -> str | None:
    """None where `port` of `host` is free; else who listens there, as far as this user may know."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return None
        except PermissionError:
            return "the kernel (ports below 1024 are for root)"
        except OSError as error:
            reason = error.strerror or str(error)
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    break
                process = psutil.Process(connection.pid)
                return f"process {connection.pid} ({' '.join(process.cmdline()[:4])[:120] or process.name()})"
    except psutil.Error:
        pass  # another user's process: the reason below is all that can be said
    return f"another process ({reason})"


@dataclass(frozen=True, slots=True)
class Running:
    """What the lock file of a running service says."""

    pid: int
    url: str
    started_at: float


class ServiceLock:
    """Held as long as a service runs on a data folder. The kernel lets go of it however the process ends."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "service.lock"
        self._file: IO[str] | None = None

    def acquire(self, url: str) -> Self:
        """Raises AlreadyRunning."""
        file = self._lock()
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "url": url, "started_at": time.time()}, file)
        file.flush()
        os.set_inheritable(file.fileno(), False)
        self._file = file
        return self

    def _lock(self) -> IO[str]:
        while True:
            file = self.path.open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                running = read_running(self.path.parent)
                where = f" at {running.url} (process {running.pid})" if running else ""
                raise AlreadyRunning(
                    f"the service is running on {self.path.parent} already{where}; "
                    "stop that one with Ctrl-C, or give this one another data_dir and port"
                ) from None
            # A start that failed removes its file; a lock on what was removed would keep nobody out.
            if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                return file
            file.close()

    def release(self, *, remove: bool = False) -> None:
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            if remove:
                self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def read_running(data_dir: Path) -> Running | None:
    """The service that runs on `data_dir` now, or None."""
    path = data_dir / "service.lock"
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                return Running(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def adopt_orphans() -> None:
    """Make this process the parent of whatever its children leave behind, so that `end_children` finds all."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children(seconds: float) -> list[int]:
    """End every process below this one: asked first, killed after `seconds`. Returns the pids that were still there."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(left, timeout=seconds)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=seconds)
    return [process.pid for process in left]
