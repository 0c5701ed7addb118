"""The report's arithmetic, by hand."""

import json
from pathlib import Path

import pytest

from online_rl.demo.report import find_recovery, moving_average, summarise_phase, write_json


def test_moving_average_over_a_short_window() -> None:
    assert moving_average([1, 0, 1, 1], window=2) == [1.0, 0.5, 0.5, 1.0]
    assert moving_average([]) == []


def test_recovery_needs_a_full_window_of_the_phase() -> None:
    assert find_recovery([1.0] * 31) is None
    assert find_recovery([1.0] * 32) == 32
    assert find_recovery([0.0] * 32 + [1.0] * 32) == 32 + 23  # 23 of 32 are the first share above 0.7
    assert find_recovery([0.0, 1.0] * 100) is None


def test_recovery_at_exactly_the_level() -> None:
    assert find_recovery([1, 1, 1, 1, 1, 1, 1, 0, 0, 0], window=10, level=0.7) == 10


def test_summary() -> None:
    phase = summarise_phase("question", [0.0] * 32 + [1.0] * 32, {"likelihood": 0.9, "diversity": 0.8})
    assert (phase.reward_first, phase.reward_last) == (0.0, 1.0)
    assert phase.quality_last == 0.8
    assert phase.trajectories == 64
    assert phase.recovered_after == 55
    assert phase.reward_curve == [0.0, 0.0, 1.0, 1.0]


def test_the_last_point_of_a_curve_may_stand_for_fewer_rewards() -> None:
    assert summarise_phase("concise", [1.0] * 16 + [0.0, 1.0], {"likelihood": 1.0}).reward_curve == [1.0, 0.5]


def test_summary_of_nothing() -> None:
    with pytest.raises(ValueError, match="no rewards"):
        summarise_phase("question", [], {"likelihood": 1.0})


def test_a_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "q.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [item.name for item in path.parent.iterdir()] == ["q.json"]
