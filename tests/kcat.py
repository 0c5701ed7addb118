"""kcat, a Kafka client of other make than the service's own: what it reads is what is on the wire."""

import os
import shutil
import subprocess
from importlib.metadata import files
from pathlib import Path
from typing import NamedTuple

import pytest


class KcatMessage(NamedTuple):
    """As bytes; without a value it is a tombstone."""

    key: bytes | None
    value: bytes | None


class Kcat:
    def __init__(self, program: str, folder: Path) -> None:
        """`folder`: an empty one of the caller's."""
        self._program = program
        # librdkafka up to 2.0 (Debian 12 has 2.0.2) misreads the tagged fields in a broker's list of API versions, and
        # finds no broker then. The package confluent-kafka brings a new one, which takes its place.
        bundled = next(file for file in files("confluent-kafka") or () if file.name.startswith("librdkafka"))
        (folder / "librdkafka.so.1").symlink_to(bundled.locate())
        self._environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}

    def topics(self, bootstrap_servers: str) -> set[str]:
        listed = self._run("-L", "-b", bootstrap_servers).decode()
        return {line.split('"')[1] for line in listed.splitlines() if line.strip().startswith('topic "')}

    def consume(self, bootstrap_servers: str, topic: str) -> list[KcatMessage]:
        """All that lies in `topic` now, in order."""
        # With the lengths in front, so that keys and values may be any bytes.
        out = self._run("-C", "-e", "-q", "-b", bootstrap_servers, "-t", topic, "-o", "beginning", "-f", "%K %S\n%k%s")
        found: list[KcatMessage] = []
        while out:
            head, _, out = out.partition(b"\n")
            key, value = (int(length) for length in head.split())
            taken = max(key, 0), max(key, 0) + max(value, 0)
            found.append(KcatMessage(None if key < 0 else out[: taken[0]], None if value < 0 else out[slice(*taken)]))
            out = out[taken[1] :]
        return found

    def _run(self, *arguments: str) -> bytes:
        done = subprocess.run(
            [self._program, *arguments], env=self._environment, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout


def require_kcat(folder: Path) -> Kcat:
    """Without kcat the test is skipped, which fails it under CI."""
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("kcat is not installed; `apt-get install kcat` brings it")
    return Kcat(program, folder)
