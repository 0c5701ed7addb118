"""The summary of several reports: intervals by hand, and a figure that is there."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.demo_reports import main, mean_interval
from online_rl.demo.report import Report, summarise_phase


def report(seed: int, rewards: list[float]) -> Report:
    return Report(
        phases=[summarise_phase("question", rewards, {"likelihood": 1.0, "diversity": 0.9})],
        versions_published=3,
        requests=10,
        failed_requests=0,
        feedback_accepted=len(rewards),
        trajectories_trained=len(rewards),
        drift_events=0,
        kl_to_base=None,
        mismatch_mean=None,
        mismatch_kl=None,
        seconds=60.0,
        seed=seed,
        learning_rate=1e-3,
        commit="c",
        machine="m",
    )


def test_the_interval_is_student_s() -> None:
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # t(0.975; 2) = 4.302653, s = 1
    assert mean_interval([5.0]) == (5.0, math.inf)


def test_a_seed_that_never_learned_is_counted_and_not_averaged_away(tmp_path: Path, capsys) -> None:
    paths = []
    for seed, rewards in enumerate([[1.0] * 64, [0.0] * 64]):
        paths.append(tmp_path / f"{seed}.json")
        paths[-1].write_text(report(seed, rewards).model_dump_json())
    main([*map(str, paths), "--json", str(tmp_path / "s.json"), "--figure", str(tmp_path / "s.svg")])
    summary = json.loads((tmp_path / "s.json").read_text())["question"]
    assert (summary["seeds"], summary["reached"]) == (2, 1)
    assert summary["recovered_after"]["values"] == [32]
    assert summary["reward_last"]["mean"] == 0.5
    assert (tmp_path / "s.svg").read_text().count("<path") > 10
    assert "question" in capsys.readouterr().out
