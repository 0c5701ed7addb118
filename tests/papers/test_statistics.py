"""When a run counts as collapsed, and what an interval says of a claim, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.statistics import find_collapse, find_gain, find_interval, judge_claim, judge_run, moving_means


def test_moving_means() -> None:
    assert moving_means([1, 2, 3, 4], 2) == [1.5, 2.5, 3.5]
    assert moving_means([1, 2, 3], 50) == [2.0]


def test_the_collapse_is_the_first_update_after_which_the_mean_stays_low() -> None:
    # Best 1, half 0.5: the means of 2 stay below it from the seventh on, which ends with update 8.
    rewards = [1, 1, 1, 0, 0, 1, 0, 0, 0]
    assert moving_means(rewards, 2) == [1, 1, 0.5, 0, 0.5, 0.5, 0, 0]
    assert find_collapse(rewards, 2) == 8


def test_a_run_that_comes_back_did_not_collapse() -> None:
    assert find_collapse([1, 1, 0, 0, 0, 1, 1], 2) is None
    assert find_collapse([0.5, 0.5, 0.25, 0.25], 2) is None, "exactly half is not below half"


def test_the_window_is_50_updates() -> None:
    # After n zeros the mean of 50 is (50 − n)/50: first below one half with the 26th.
    assert find_collapse([1.0] * 60 + [0.0] * 60) == 86


@given(st.lists(st.floats(0, 1), min_size=1, max_size=120), st.integers(1, 30))
def test_every_mean_from_the_collapse_on_is_low_and_the_one_before_is_not(rewards: list[float], window: int) -> None:
    found = find_collapse(rewards, window)
    means = moving_means(rewards, window)
    half = max(means) / 2
    if found is None:
        assert means[-1] >= half
    else:
        first = found - min(window, len(rewards))
        assert all(mean < half for mean in means[first:])
        assert first > 0
        assert means[first - 1] >= half


def test_a_run_without_a_gain_of_0_2_did_not_learn() -> None:
    assert judge_run(0.5, [0.69] * 60) == "did_not_learn"
    assert judge_run(0.5, [0.71] * 60) == "stable"
    assert judge_run(0.5, [0.9] * 60 + [0.1] * 60) == "collapsed"
    assert judge_run(0.5, [0.6] * 60 + [0.1] * 60) == "did_not_learn", "a fall without a rise is no collapse"


def test_a_gain_is_found_where_the_mean_of_5_first_shows_it() -> None:
    # From 0.5: the mean must reach 0.7, four ones of five (0.8) with three ones (0.6) not enough: the ninth update.
    assert find_gain(0.5, [0.0] * 5 + [1.0] * 10) == 9
    assert find_gain(0.5, [0.6] * 100) is None


def test_the_interval_is_students() -> None:
    # Of 1, 2, 3: mean 2, s = 1, standard error 1/√3, and t(0.975; 2) = 4.302653.
    interval = find_interval([1.0, 2.0, 3.0])
    assert interval.estimate == 2.0
    assert interval.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert interval.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert find_interval([1.0]).low is None
    assert find_interval([]).estimate is None


@pytest.mark.parametrize(
    ("values", "side", "held"),
    [
        ([1.0, 1.1, 0.9], "above", True),
        ([1.0, 1.1, 0.9], "below", False),
        ([-1.0, -1.1, -0.9], "above", False),
        ([-1.0, -1.1, -0.9], "below", True),
        ([-1.0, 1.1, 0.9], "above", None),
        ([-1.0, 1.1, 0.9], "below", None),
        ([5.0], "above", None),
        ([], "above", None),
    ],
)
def test_a_claim_holds_where_the_whole_interval_is_on_its_side(values: list[float], side: str, held: object) -> None:
    claim = judge_claim("x", values, side=side, bound=0.0, measure="m")  # pyright: ignore[reportArgumentType]
    assert claim.held is held
    assert f"{len(values)} seeds" in claim.measure
