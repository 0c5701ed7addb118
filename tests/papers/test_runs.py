"""Rows add up: what is there is kept, what is missing is made, what does not belong is refused."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.papers.runs import Job, OtherSetup, Row, find_missing, run_jobs

LOG = "made.txt"


@dataclass(frozen=True)
class Setup:
    """What a run writes to; small, so that the processes of these tests start fast."""

    log: str
    updates: int = 1
    shape: tuple[int, int] = (1, 2)


def work(job: Job, tick: Callable[[], None]) -> Row:
    """Leaves a line for each run it makes; `fails` fails."""
    if job.setup.log == "fails":
        raise RuntimeError("this run failed")
    with Path(job.setup.log).open("a") as file:
        file.write(f"{job.variant} {job.seed}\n")
    tick()
    return {"figure": float(job.seed)}


def make_jobs(seeds: int, folder: Path, updates: int = 1) -> list[Job]:
    setup = Setup(str(folder / LOG), updates)
    return [Job(variant, seed, setup, updates) for seed in range(seeds) for variant in ("a", "b")]


def read_log(folder: Path) -> list[str]:
    return sorted((folder / LOG).read_text().split("\n")[:-1])


def test_a_later_command_makes_exactly_the_missing_seeds(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    first = run_jobs("test", make_jobs(1, tmp_path), work, path, 1)
    assert read_log(tmp_path) == ["a 0", "b 0"]
    assert {(row["objective"], row["seed"]) for row in first} == {("a", 0), ("b", 0)}
    (tmp_path / LOG).unlink()
    rows = run_jobs("test", make_jobs(3, tmp_path), work, path, 1)
    assert read_log(tmp_path) == ["a 1", "a 2", "b 1", "b 2"]
    assert len(rows) == 6
    assert json.loads(path.read_text())["rows"] == rows
    for row in rows:
        assert row["figure"] == row["seed"]
        assert {"commit", "machine", "seconds"} <= row.keys()
        assert row["setup"] == {"log": str(tmp_path / LOG), "updates": 1, "shape": [1, 2]}


def test_rows_of_other_variants_stay_in_the_file_and_out_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    jobs = make_jobs(1, tmp_path)
    run_jobs("test", jobs[:1], work, path, 1)
    assert [row["objective"] for row in run_jobs("test", jobs[1:], work, path, 1)] == ["b"]
    assert [row["objective"] for row in json.loads(path.read_text())["rows"]] == ["a", "b"]


def test_what_was_finished_before_a_failure_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    jobs = [*make_jobs(1, tmp_path), Job("c", 0, Setup("fails"), 1)]
    with pytest.raises(RuntimeError, match="this run failed"):
        run_jobs("test", jobs, work, path, 1)
    assert {row["objective"] for row in json.loads(path.read_text())["rows"]} == {"a", "b"}


def test_rows_of_another_set_up_are_refused_by_name(tmp_path: Path) -> None:
    rows = [{"objective": "a", "seed": 0, "setup": make_jobs(1, tmp_path)[0].described}]
    with pytest.raises(OtherSetup, match=r"'a', seed 0 was made with another updates"):
        find_missing(make_jobs(1, tmp_path, updates=2), rows)
    other = Job("a", 0, Setup(str(tmp_path / LOG), shape=(2, 2)), 1)
    with pytest.raises(OtherSetup, match="another shape"):
        find_missing([other], rows)
