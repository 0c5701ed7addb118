"""The two servers: each a process of its own on loopback, both loaded for the whole run, one under load at a time."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import aiohttp
import psutil

from benchmarks.chat import connect
from online_rl.demo.service_process import ServiceProcess
from serving.vllm_options import EngineOptions

START_SECONDS = 600.0
STOP_SECONDS = 60.0
QUIET_CORES = 0.5
QUIET_SECONDS = 3.0

Say = Callable[[str], None]


class ServerFailed(RuntimeError):
    """A server did not start, or ended. The message says which, and where its log is."""


class Plain:
    """Plain vLLM."""

    def __init__(self, folder: Path, port: int, options: EngineOptions, *, sleeps: bool) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "plain.log"
        self._command = [sys.executable, "-m", "benchmarks.serving.plain", "--port", str(port)]
        self._command += ["--options", json.dumps(asdict(options) | {"model": str(options.model)})]
        self._command += ["--sleeps"] if sleeps else []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def wait_ready(self) -> None:
        """Raises ServerFailed."""
        deadline = time.monotonic() + START_SECONDS
        while not await _answers(self.url, "/health"):
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"plain vLLM did not start; see {self._log}")
            await asyncio.sleep(0.5)

    def processes(self) -> list[psutil.Process]:
        return _tree(None if self._process is None else self._process.pid)

    def stop(self) -> None:
        if self._process is None:
            return
        left = self.processes()
        self._process.send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs(left, timeout=STOP_SECONDS)
        for process in alive:
            process.kill()


class Ours:
    """`online-rl up` on a data folder of its own."""

    def __init__(self, folder: Path, port: int, assignments: Sequence[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        self._service = ServiceProcess(folder, port, assignments)

    def start(self) -> None:
        self._service.start()

    async def wait_ready(self, say: Say) -> None:
        """Raises DemoError where the service ends, with its own last words."""

        async def is_ready() -> bool:
            return await _answers(self.url, "/v1/ready")

        await self._service.wait_ready(is_ready, say)

    def processes(self) -> list[psutil.Process]:
        return _tree(self._service.pid)

    def stop(self) -> None:
        self._service.stop()


async def _answers(url: str, path: str) -> bool:
    try:
        async with connect(url) as session, session.get(path, timeout=aiohttp.ClientTimeout(total=30)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _tree(pid: int | None) -> list[psutil.Process]:
    if pid is None or not psutil.pid_exists(pid):
        return []
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def read_cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds of CPU time that these have used; those that ended count nothing."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


async def wait_quiet(processes: Callable[[], list[psutil.Process]], limit_seconds: float = 120.0) -> float:
    """Wait until these use less than half a core for some seconds, or the limit. Returns the cores used last."""
    deadline = time.monotonic() + limit_seconds
    while True:
        own = processes()
        before, at = read_cpu(own), time.monotonic()
        await asyncio.sleep(QUIET_SECONDS)
        cores = (read_cpu(own) - before) / (time.monotonic() - at)
        if cores < QUIET_CORES or time.monotonic() > deadline:
            return cores


def send_signal(pid: int, number: signal.Signals) -> None:
    """A process that is gone is no error: the service starts another."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
