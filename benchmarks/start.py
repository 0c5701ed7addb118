"""How long after `online-rl up` the first request is answered, on a machine where it ran before.

::

    python -m benchmarks.start --runs 3 --json start.json

The first start only warms the disk's cache and is not counted. Each start gets an empty data folder. The answer has
at most 16 tokens.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

LIMIT_SECONDS = 600.0
QUESTION = {
    "model": "policy",
    "messages": [{"role": "user", "content": "What do you think about rain?"}],
    "max_tokens": 16,  # an answer without an end would be most of what is measured
}


def measure_start(folder: Path, port: int) -> float:
    """Seconds from the command to the end of the first complete answer. Raises RuntimeError where none comes."""
    command = [str(Path(sys.executable).with_name("online-rl")), "up", "--data-dir", str(folder), "--port", str(port)]
    started = time.monotonic()
    with (folder.parent / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    client = httpx.Client(timeout=60)  # one for all: each makes a TLS context, which is the starting service's time
    try:
        while time.monotonic() - started < LIMIT_SECONDS:
            if process.poll() is not None:
                raise RuntimeError(f"`online-rl up` ended with exit code {process.returncode}; see {log.name}")
            try:
                answer = client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=QUESTION)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]:
                return time.monotonic() - started
            time.sleep(0.25)
        raise RuntimeError(f"no answer within {LIMIT_SECONDS:.0f} s; see {log.name}")
    finally:
        client.close()
        process.send_signal(signal.SIGINT)
        process.wait(120)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="counted starts, after one that is not")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--json", type=Path, help="write the seconds here")
    chosen = parser.parse_args(arguments)
    seconds: list[float] = []
    for run in range(chosen.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            seconds.append(measure_start(Path(folder) / "data", chosen.port))
        print(f"start {run}: first answer after {seconds[-1]:.1f} s", flush=True)
    table = Table("starts", "median s", "slowest s", title="From `online-rl up` to the first answer")
    counted = sorted(seconds[1:])
    table.add_row(str(len(counted)), f"{counted[len(counted) // 2]:.1f}", f"{counted[-1]:.1f}")
    Console().print(table)
    if chosen.json:
        content = {"first_uncounted": seconds[0], "seconds": seconds[1:]}
        chosen.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
