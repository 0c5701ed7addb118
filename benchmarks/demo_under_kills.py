"""The quick demo while its learner, and then its broker, are killed with -9: it must still meet the same marks.

::

    python -m benchmarks.demo_under_kills --report docs/results/killed-0.json

Exits with 1 where a mark is missed. The embedded broker and SQLite only: what is killed must be ours.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from feedback.database import open_database
from online_rl import tables
from online_rl.demo.report import Report

SECONDS_INTO_UPDATE = 6.0
"""A learner is killed this long after an update was recorded: inside of the next one."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A part killed once the learner had made `updates` updates."""

    part: str
    pid: int
    updates: int
    at: float
    """Seconds after the demo's start."""


class Database:
    """What the demo's database says. It may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "online_rl.db"

    def _scalar(self, statement: sa.Select) -> int | None:
        if not self._file.exists():
            return None
        engine = open_database(f"sqlite:///{self._file}")
        try:
            with engine.connect() as connection:
                return connection.execute(statement).scalar()
        except OperationalError:  # no tables yet
            return None
        finally:
            engine.dispose()

    def updates(self) -> int:
        return self._scalar(sa.select(sa.func.count()).select_from(tables.updates)) or 0

    def learner_pid(self) -> int | None:
        return self._scalar(sa.select(tables.parts.c.pid).where(tables.parts.c.name == "learner"))

    def trained_twice(self) -> int:
        """Places in the batches of all updates beyond the trajectories that trained: 0 where none trained twice."""
        places = self._scalar(sa.select(sa.func.sum(tables.updates.c.trajectories))) or 0
        trained = self._scalar(sa.select(sa.func.count()).select_from(tables.trainings)) or 0
        return places - trained


def broker_pid(demo: int) -> int | None:
    """Of the embedded broker below the process `demo`."""
    for process in psutil.Process(demo).children(recursive=True):
        if "tansu" in process.name():
            return process.pid
    return None


def kill_parts(demo: subprocess.Popen[bytes], database: Database, plan: Sequence[tuple[str, int]]) -> Iterator[Kill]:
    """Kill each (part, after how many updates) of `plan` in turn, while the demo runs."""
    started = time.monotonic()
    for part, after in plan:
        while database.updates() < after:
            if demo.poll() is not None:
                return
            time.sleep(0.5)
        if part == "learner":
            time.sleep(SECONDS_INTO_UPDATE)
        pid = database.learner_pid() if part == "learner" else broker_pid(demo.pid)
        if pid is None:
            raise SystemExit(f"no {part} to kill was found")
        os.kill(pid, signal.SIGKILL)
        yield Kill(part, pid, database.updates(), round(time.monotonic() - started, 1))


def find_misses(report: Report, trained_twice: int, kills: int, planned: int) -> list[str]:
    """The marks that this run missed, each in a sentence."""
    phase = report.phases[0]
    gain = phase.reward_last - phase.reward_first
    checks = {
        f"{kills} of {planned} kills took place": kills == planned,
        f"{report.failed_requests} requests failed": report.failed_requests == 0,
        f"{report.versions_published} versions were published, not 3 or more": report.versions_published >= 3,
        f"the reward rose by {gain:.2f}, not by 0.25 or more": gain >= 0.25,
        f"the mismatch is {report.mismatch_mean}, not below 0.1": (report.mismatch_mean or 0.0) < 0.1,
        f"the run took {report.seconds:.0f} s, not 480 or less": report.seconds <= 480,
        f"{trained_twice} trajectories trained twice": trained_twice == 0,
    }
    return [miss for miss, met in checks.items() if not met]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, required=True, help="the demo's report goes here")
    parser.add_argument("--data-dir", type=Path, default=Path(".online_rl/killed"), help="folder of the demo's service")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learner-after", type=int, default=3, help="updates before the learner is killed")
    parser.add_argument("--broker-after", type=int, default=5, help="updates before the broker is killed")
    parser.add_argument("--json", type=Path, help="write kills and marks here")
    chosen = parser.parse_args(arguments)
    command = [str(Path(sys.executable).with_name("online-rl")), "demo", "--quick", "--report", str(chosen.report)]
    command += ["--data-dir", str(chosen.data_dir), "--port", str(chosen.port), "--seed", str(chosen.seed)]
    demo = subprocess.Popen(command)
    database = Database(chosen.data_dir)
    kills: list[Kill] = []
    plan = [("learner", chosen.learner_after), ("broker", chosen.broker_after)]
    try:
        for kill in kill_parts(demo, database, plan):
            kills.append(kill)
            print(f"kill -9 {kill.pid}: the {kill.part}, after {kill.updates} updates, at {kill.at:.0f} s", flush=True)
        code = demo.wait()
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait()
    if code != 0:
        raise SystemExit(f"the demo ended with exit code {code}")
    report = Report.model_validate_json(chosen.report.read_text(encoding="utf-8"))
    twice = database.trained_twice()
    misses = find_misses(report, twice, len(kills), len(plan))
    if chosen.json:
        content = {
            "kills": [{"part": k.part, "updates": k.updates, "at": k.at} for k in kills],
            "trained_twice": twice,
            "misses": misses,
        }
        chosen.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for miss in misses:
        print(f"missed: {miss}")
    if misses:
        raise SystemExit(1)
    print(f"all marks met with {len(kills)} kills; {twice} trajectories trained twice")


if __name__ == "__main__":
    main()
