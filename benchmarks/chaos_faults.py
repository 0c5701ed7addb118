"""What is done to a running service: parts killed with -9, one paused, the database restarted, the disk filled."""

import errno
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from feedback.database import read_only
from feedback.tables import outbox
from online_rl.tables import parts

KILLED = ("broker", "assembler", "relay", "learner", "feedback", "policy")
PAUSED = ("broker", "assembler", "learner", "feedback")
PAUSE_SECONDS = 30.0
FULL_SECONDS = 30.0
FIND_SECONDS = 90.0
"""A part that was killed just now may take so long to be there again: the policy loads its engine."""


def plan_faults(seconds: float, kinds: Sequence[str], chance: random.Random, gap: float = 22.0) -> list[str]:
    """Each kind once, in random order, and again as often as there is time: one each `gap` seconds. Pure."""
    planned: list[str] = []
    while len(planned) < max(len(kinds), int(seconds / gap)):
        again = list(kinds)
        chance.shuffle(again)
        planned += again
    return planned[: max(len(kinds), int(seconds / gap))]


class Victims:
    """The processes of one service."""

    def __init__(self, service: int, engine: Engine) -> None:
        self._service = service
        self._engine = engine

    def find(self, part: str) -> psutil.Process | None:
        """The part's process, waited for; the relay is the assembler's, at a moment when something is to be sent."""
        deadline = time.monotonic() + FIND_SECONDS
        while time.monotonic() < deadline:
            found = self._find("assembler" if part == "relay" else part)
            if found is not None and (part != "relay" or self._outbox_waits()):
                return found
            time.sleep(0.02 if part == "relay" else 0.5)
        return None

    def all(self) -> list[psutil.Process]:
        return psutil.Process(self._service).children(recursive=True)

    def _find(self, part: str) -> psutil.Process | None:
        below = self.all()
        if part == "broker":
            return next((one for one in below if "tansu" in _title(one)), None)
        if part in ("feedback", "policy"):
            return next((one for one in below if _title(one).startswith(f"ray::ServeReplica:{part}:")), None)
        pid = self._scalar(sa.select(parts.c.pid).where(parts.c.name == part))
        return next((one for one in below if one.pid == pid), None)

    def _outbox_waits(self) -> bool:
        return bool(self._scalar(sa.select(outbox.c.seq).where(outbox.c.state == "waiting").limit(1)))

    def _scalar(self, query: sa.Select) -> int | None:
        try:
            with read_only(self._engine).connect() as connection:
                return connection.scalar(query)
        except SQLAlchemyError:  # it is being restarted, or its disk is full
            return None


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def kill(victims: Victims, part: str) -> int | None:
    """The process id, or None where the part was not there to be killed."""
    process = victims.find(part)
    if process is None:
        return None
    process.send_signal(signal.SIGKILL)
    return process.pid


def pause(victims: Victims, part: str, seconds: float = PAUSE_SECONDS) -> bool:
    process = victims.find(part)
    if process is None:
        return False
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        # Whoever watches over it may have ended it meanwhile.
        if process.is_running():
            process.send_signal(signal.SIGCONT)
    return True


class Disk:
    """The disk that the data folder is on: a small tmpfs, or where that may not be mounted a limit as a stand-in."""

    def __init__(self, folder: Path, mib: int, victims: Callable[[], Victims]) -> None:
        self._folder = folder
        self._victims = victims
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
        try:
            self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            self.mounted = False
        self.kind = f"tmpfs of {mib} MiB" if self.mounted else "stand-in: the parts may write no file (RLIMIT_FSIZE)"

    def fill(self, seconds: float = FULL_SECONDS) -> None:
        with self._full() if self.mounted else self._limited():
            time.sleep(seconds)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=False)

    @contextmanager
    def _full(self) -> Iterator[None]:
        ballast = self._folder / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file:
                for size in (1 << 20, 1 << 12, 1):
                    while True:
                        try:
                            file.write(bytes(size))
                        except OSError as error:
                            if error.errno != errno.ENOSPC:
                                raise
                            break
            yield
        finally:
            ballast.unlink(missing_ok=True)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        limited: list[psutil.Process] = []
        try:
            for process in self._victims().all():
                # Python ignores the signal that comes with it; Ray's own processes and the broker would die of it.
                if _title(process).startswith("ray::") and _limit(process, may_write=False):
                    limited.append(process)
            yield
        finally:
            for process in limited:
                _limit(process, may_write=True)


def _limit(process: psutil.Process, *, may_write: bool) -> bool:
    try:
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (hard if may_write else 0, hard))
    except (psutil.Error, OSError):
        return False
    return True
