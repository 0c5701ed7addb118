"""Rows that add up: each finished run is written at once, and a later command makes only the runs that are missing.

A row belongs to a variant and a seed, and carries the set-up, the commit and the machine that made it. Rows of another
set-up under the same name are refused rather than mixed.
"""

import dataclasses
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from online_rl.demo.report import describe_commit, describe_machine, write_json

Row = dict[str, Any]
PROCESSES = 2


class OtherSetup(ValueError):
    """The file holds rows that were made in another way; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make."""

    variant: str
    """Its name in the table; the field `objective` of the row."""
    seed: int
    setup: Any
    """A dataclass of plain values."""
    updates: int
    """How often the work will tick."""

    @property
    def described(self) -> dict[str, Any]:
        """The set-up as JSON holds it."""
        return json.loads(json.dumps(dataclasses.asdict(self.setup)))


Work = Callable[[Job, Callable[[], None]], Row]
"""Makes the figures of one job. A function of a module: other processes import it."""


def read_rows(path: Path) -> list[Row]:
    """Rows of earlier commands; none where the file is not there."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []


def find_missing(jobs: Sequence[Job], rows: Sequence[Row]) -> list[Job]:
    """The jobs that no row answers. Raises OtherSetup where a row of that name and seed was made differently."""
    known = {(row["objective"], row["seed"]): row["setup"] for row in rows}
    missing: list[Job] = []
    for job in jobs:
        setup = known.get((job.variant, job.seed))
        if setup is None:
            missing.append(job)
        elif setup != job.described:
            changed = sorted(key for key in {*setup, *job.described} if setup.get(key) != job.described.get(key))
            raise OtherSetup(
                f"row {job.variant!r}, seed {job.seed} was made with another {', '.join(changed)}: "
                "give another --json, or remove the file"
            )
    return missing


def run_jobs(experiment: str, jobs: Sequence[Job], work: Work, path: Path, processes: int = PROCESSES) -> list[Row]:
    """Make the missing rows, in `processes` of one thread each, and return those of all `jobs`.

    `path` is rewritten after every run, so an interruption costs the runs under way. Raises OtherSetup, and what a run
    raised.
    """
    rows = read_rows(path)
    missing = find_missing(jobs, rows)
    context = multiprocessing.get_context("spawn")
    ticks = context.Value("q", 0)
    origin = {"commit": describe_commit(), "machine": describe_machine()}
    with (
        _progress() as progress,
        ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=(ticks,)) as pool,
    ):
        bar = progress.add_task(experiment, total=sum(job.updates for job in missing))
        pending: dict[Future[Row], Job] = {pool.submit(_run, work, job): job for job in missing}
        try:
            while pending:
                done, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                progress.update(bar, completed=ticks.value)
                # Those that failed last: what is finished beside them is written first.
                for future in sorted(done, key=lambda future: future.exception() is not None):
                    job = pending.pop(future)
                    head = {"objective": job.variant, "seed": job.seed}
                    rows.append(head | future.result() | {"setup": job.described} | origin)
                    write_json(path, {"experiment": experiment, "rows": rows, "claims": []})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    wanted = {(job.variant, job.seed) for job in jobs}
    return [row for row in rows if (row["objective"], row["seed"]) in wanted]


_ticks: "Synchronized[int] | None" = None


def _start_worker(ticks: "Synchronized[int]") -> None:
    global _ticks
    _ticks = ticks


def _tick() -> None:
    assert _ticks is not None
    with _ticks.get_lock():
        _ticks.value += 1


def _run(work: Work, job: Job) -> Row:
    started = time.perf_counter()
    return work(job, _tick) | {"seconds": round(time.perf_counter() - started, 1)}


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("updates"))
    return Progress(*columns, TimeRemainingColumn())
