"""The service under load while its parts are killed at random: is every acknowledged feedback accounted for?

::

    python -m benchmarks.chaos --minutes 10 --json c.json              # SQLite on a small disk
    python -m benchmarks.chaos --minutes 10 --postgres --json p.json   # a PostgreSQL server of its own

Killed with -9: the broker, the assembler, the relay (which lives in the assembler's process: at a moment when rows wait
to be published), the learner, the feedback replica and the policy replica. One process is paused for 30 s, the disk of
the data folder is full for 30 s, and PostgreSQL is stopped as in a crash and started again. Exits with 1 where anything
is lost, doubled or trained twice, or a kind of fault did not take place.

`orphaned` is feedback whose answer died with its policy replica before it reached the replica's disk; it is stored,
counted apart and part of no trajectory.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.chaos_accounts import describe, settle_accounts, unsettled
from benchmarks.chaos_faults import KILLED, PAUSED, Disk, Victims, kill, pause, plan_faults
from benchmarks.chaos_load import Load
from feedback.database import open_database

START_SECONDS = 600.0
SETTLE_SECONDS = 240.0
ORPHAN_SECONDS = 60.0
SETTINGS = (
    f"feedback.orphan_seconds={ORPHAN_SECONDS}",
    "swap.keep_versions=1",
    "learner.keep_checkpoints=1",
    "learner.publish_every=2",
)


class Service:
    """``online-rl up`` as a process of its own."""

    def __init__(self, folder: Path, port: int, models: Path, database: str | None, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [str(Path(sys.executable).with_name("online-rl")), "up", "--data-dir", str(folder)]
        command += ["--port", str(port), "--set", f"models_dir={models}"]
        for setting in SETTINGS:
            command += ["--set", setting]
        environment = os.environ | ({"DATABASE_URL": database} if database else {})
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._log = log

    def wait(self) -> None:
        """Until it answers. Raises SystemExit."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/ready", timeout=30).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(1.0)
        raise SystemExit(f"the service did not start; see {self._log}:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Chaos:
    """One run."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self._chosen = chosen
        self._chance = random.Random(chosen.seed)
        self._folder = folder
        self._postgres = _start_postgres() if chosen.postgres else None
        self._disk = Disk(folder / "data", chosen.disk_mib, lambda: self._victims)
        database = None if self._postgres is None else self._postgres.create_database("chaos")
        models = chosen.models_dir.absolute()
        self._service = Service(folder / "data", chosen.port, models, database, folder / "up.log")
        self._engine: Engine = open_database(database or f"sqlite:///{folder / 'data' / 'online_rl.db'}")
        self._victims = Victims(self._service.process.pid, self._engine)
        self.happened: Counter[str] = Counter()
        self.kinds = (*KILLED, "paused", "disk_full", *(("postgresql",) if self._postgres else ()))

    def run(self) -> dict[str, Any]:
        self._service.wait()
        load = Load(self._service.url, self._chosen.workers, self._chosen.seed)
        began = time.monotonic()
        seconds = self._chosen.minutes * 60
        load.start()
        try:
            self._do_faults(began, seconds)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        finally:
            minutes = (time.monotonic() - began) / 60
            load.stop(SETTLE_SECONDS)
        self._settle()
        self._service.stop()
        accounts = settle_accounts(self._engine, load.acknowledged)
        return {
            **describe(accounts),
            "kills": {name: self.happened[name] for name in self.kinds if name not in ("paused", "disk_full")},
            "minutes": round(minutes, 1),
            "paused": self.happened["paused"],
            "disk_full": self.happened["disk_full"],
            "disk": self._disk.kind,
            "database": self._engine.dialect.name,
            "asked": load.asked,
            "asks_failed": load.asks_failed,
            "feedback_refused": load.feedback_refused,
            "unexpected": load.unexpected[:10],
            "lost_keys": accounts.lost[:10],
            "duplicated_keys": accounts.duplicated[:10],
            "seed": self._chosen.seed,
        }

    def close(self) -> None:
        self._service.stop()
        self._engine.dispose()
        if not self._chosen.keep:
            self._disk.close()
        if self._postgres is not None:
            self._postgres.close()

    def _do_faults(self, began: float, seconds: float) -> None:
        planned = plan_faults(seconds, self.kinds, self._chance)
        for number, kind in enumerate(planned):
            # Spread over the run; what takes long itself (a pause, a full disk) makes the next one come at once.
            at = began + seconds * (number + 0.5) / len(planned)
            time.sleep(max(0.0, at + self._chance.uniform(-3, 3) - time.monotonic()))
            if time.monotonic() - began > seconds:
                return
            done = self._do(kind)
            self.happened[kind] += done
            print(f"{time.monotonic() - began:6.0f} s  {kind:<10} {'done' if done else 'was not there'}", flush=True)

    def _do(self, kind: str) -> bool:
        if kind == "paused":
            return pause(self._victims, self._chance.choice(PAUSED))
        if kind == "disk_full":
            self._disk.fill()
            return True
        if kind == "postgresql":
            assert self._postgres is not None
            self._postgres.stop()
            time.sleep(self._chance.uniform(1, 5))
            self._postgres.start()
            return True
        return kill(self._victims, kind) is not None

    def _settle(self) -> None:
        """Until every feedback has its place: an answer may lie in the spool of a replica that is starting again."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            try:
                if unsettled(self._engine) == 0:
                    return
            except SQLAlchemyError as error:
                print(f"the database does not answer yet: {type(error).__name__}", flush=True)
            time.sleep(1.0)


def _start_postgres() -> Any:
    from tests.postgres import PostgresServer, find_binaries

    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL's server is not installed; `apt-get install postgresql` brings it")
    server = PostgresServer(binaries)
    server.start()
    return server


def find_misses(found: dict[str, Any]) -> list[str]:
    """What must not be, each in a sentence. Pure."""
    misses = [f"{name} is {found[name]}, not 0" for name in ("lost", "duplicated", "trained_twice") if found[name]]
    if found["acknowledged"] != sum(found["fates"].values()) + found["lost"]:
        misses.append(f"of {found['acknowledged']} acknowledged {sum(found['fates'].values())} are accounted for")
    if not found["fates"].get("trained"):
        misses.append("nothing trained: the run says nothing about training twice")
    done = found["kills"] | {"paused": found["paused"], "disk_full": found["disk_full"]}
    misses += [f"no {name} took place" for name, number in done.items() if not number]
    if found["unexpected"]:
        misses.append(f"feedback was refused for good: {found['unexpected'][0]}")
    return misses


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--postgres", action="store_true", help="with a PostgreSQL server of its own, restarted too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=4, help="clients that ask and rate")
    parser.add_argument("--disk-mib", type=int, default=3072, help="size of the tmpfs of the data folder")
    parser.add_argument("--models-dir", type=Path, default=Path(".online_rl/models"), help="prepared base models")
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it (mounted)")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="online-rl-chaos-") as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chaos = Chaos(chosen, folder.absolute())
        try:
            found = chaos.run()
        finally:
            chaos.close()
    print(json.dumps(found, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    misses = find_misses(found)
    for miss in misses:
        print(f"missed: {miss}")
    if misses:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
