"""The service of a demo: a process of its own, started as a user would start it and reached over HTTP only."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from online_rl.demo.options import DemoError
from online_rl.service.processes import read_running

START_SECONDS = 600.0
STOP_SECONDS = 60.0


class ServiceProcess:
    """`online-rl up` on one data folder. `start` it, wait until it is ready, `stop` it."""

    def __init__(self, folder: Path, port: int, assignments: Sequence[str]) -> None:
        self._folder = folder
        self._port = port
        self._assignments = assignments
        self._output = folder / "logs" / "demo-up.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._attached: int | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else self._attached

    def start(self) -> None:
        """Start the service, or attach to the one that an interrupted demo left on the same folder."""
        running = read_running(self._folder)
        if running is not None:
            if not running.url.endswith(f":{self._port}"):
                raise DemoError(
                    f"a service runs on {self._folder} at {running.url} (process {running.pid}); "
                    "stop it with Ctrl-C or kill, or give its port with --port"
                )
            self._attached = running.pid
            return
        self._output.parent.mkdir(parents=True, exist_ok=True)
        command = [str(Path(sys.executable).with_name("online-rl")), "up", "--data-dir", str(self._folder)]
        command += ["--port", str(self._port)]
        for assignment in self._assignments:
            command += ["--set", assignment]
        self._output.unlink(missing_ok=True)
        with self._output.open("ab") as output:  # appending: the service keeps its log files in bounds
            # In a session of its own: Ctrl-C in the terminal must reach the demo, which then stops the service.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    async def wait_ready(self, is_ready: Callable[[], Awaitable[bool]], say: Callable[[str], None]) -> None:
        """Return once the service answers; `say` hears what it prints meanwhile. Raises DemoError where it ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        while not await is_ready():
            self.check_alive()
            if loop.time() > deadline:
                raise DemoError(f"the service was not ready after {START_SECONDS:.0f} s; see {self._output}")
            lines = self.read_output().splitlines()
            say(lines[-1].strip() if lines else "starting the service")
            await asyncio.sleep(0.5)

    def check_alive(self) -> None:
        """Raises DemoError with the service's own last words where it has ended."""
        if self._process is None or self._process.poll() is None:
            return
        words = "\n".join(self.read_output().splitlines()[-12:])
        raise DemoError(f"the service ended with exit code {self._process.returncode}:\n{words}\n(see {self._output})")

    def read_output(self) -> str:
        return self._output.read_text("utf-8", "replace") if self._output.exists() else ""

    def stop(self) -> None:
        """Ask the service to stop and wait for it; killed only where it does not."""
        if self._process is None:
            if self._attached is not None:
                os.kill(self._attached, signal.SIGTERM)
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
