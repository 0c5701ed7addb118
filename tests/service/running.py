"""A whole service in a process of its own, started as a user would start it."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

COMMAND = Path(sys.executable).with_name("online-rl")
START_SECONDS = 500.0
"""Generous: another test run may be on the same two cores."""


def wait_for(what: str, check: Callable[[], Any], seconds: float) -> Any:
    """The first true value of `check`, asked every 0.2 s."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.2)


def run(*arguments: str, env: dict[str, str] | None = None, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run ``online-rl`` to its end."""
    return subprocess.run(
        [str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **(env or {})},
        check=False,
    )


class Service:
    """``online-rl up`` on a folder and port of its own."""

    def __init__(self, data_dir: Path, port: int, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.output_file = data_dir.with_name(data_dir.name + ".out")
        self.started_at = time.monotonic()
        with self.output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [str(COMMAND), "up", "--data-dir", str(data_dir), "--port", str(port), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    def wait_for_line(self, text: str, seconds: float = START_SECONDS) -> None:
        def seen() -> bool:
            assert self.process.poll() is None or text in self.output, f"up ended:\n{self.output}"
            return text in self.output

        wait_for(f"the line {text!r}", seen, seconds)

    def processes(self) -> list[psutil.Process]:
        """This service's process and all below it."""
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def stop(self, number: int = signal.SIGINT, seconds: float = 60.0) -> list[psutil.Process]:
        """Ask the service to end as Ctrl-C does; returns the processes that are still there afterwards."""
        everything = self.processes()
        self.process.send_signal(number)
        self.process.wait(seconds)
        _, alive = psutil.wait_procs(everything, timeout=5)
        return alive

    def kill(self) -> None:
        """For when a test failed: whatever is still there goes."""
        if self.process.poll() is None:
            for process in self.processes():
                process.kill()
            self.process.wait()

    def ask(self, text: str = "What do you think about rain?", **options: Any) -> httpx.Response:
        body = {"model": "policy", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **options}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=120)

    def rate(self, inference_id: str, value: float = 1.0) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/feedback", json={"inference_id": inference_id, "value": value}, timeout=60)

    def status(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/admin/status", timeout=60)
        answer.raise_for_status()
        return answer.json()

    def part_pid(self, name: str) -> int:
        """Of the part's last heartbeat, from the SQLite database of the service."""
        with sqlite3.connect(f"file:{self.data_dir / 'online_rl.db'}?mode=ro", uri=True, timeout=30) as connection:
            row = connection.execute("SELECT pid FROM parts WHERE name = ?", (name,)).fetchone()
        return -1 if row is None else row[0]

    def broker(self) -> psutil.Process:
        return next(process for process in self.processes() if "tansu" in process.name())
