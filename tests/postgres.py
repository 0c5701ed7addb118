"""A PostgreSQL server of the tests' own: a fresh cluster in a temporary folder, on a free port, gone afterwards."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

SEARCH = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/usr/local/bin", "/opt/homebrew/bin")


def find_binaries() -> Path | None:
    """The folder with `initdb` and `postgres`: what PATH, pg_config or the usual places offer, the newest first."""
    places = [Path(found).parent for found in [shutil.which("initdb")] if found]
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        places.append(Path(answer.stdout.strip()))
    for pattern in SEARCH:
        places += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    # Debian's wrappers in PATH may be links out of the folder that holds the server's other files.
    places = [Path(os.path.realpath(place / "postgres")).parent for place in places if (place / "postgres").exists()]
    return next((place for place in places if (place / "initdb").exists()), None)


class PostgresServer:
    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="online-rl-pg-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        # The server refuses to run as root.
        self._as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as_user:
            shutil.chown(self._folder, "postgres")
        self._run("initdb", "-D", str(self._folder / "data"), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        options = ["-D", str(self._folder / "data"), "-p", str(self._port), "-k", str(self._folder)]
        options += ["-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=16MB", "-c", "fsync=off"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user, str(self._binaries / "postgres"), *options], stdout=log, stderr=log, cwd="/"
            )
        deadline = time.monotonic() + 30
        while self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self._port), check=False) != 0:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """At once, as a crash would: connections break."""
        if self._process is not None:
            self._run("pg_ctl", "stop", "-m", "immediate", "-D", str(self._folder / "data"), check=False)
            self._process.wait(timeout=30)
            self._process = None

    def create_database(self, name: str) -> str:
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self._port), "-U", "postgres", name)
        return self.url(name)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        command = [*self._as_user, str(self._binaries / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        if check and done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr[-2000:]}")
        return done.returncode


def require_postgres() -> PostgresServer:
    """A server, not started. Without PostgreSQL the test is skipped, but fails where CI must have run it."""
    binaries = find_binaries()
    if binaries is None:
        message = "PostgreSQL's server is not installed; `apt-get install postgresql` brings it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return PostgresServer(binaries)
