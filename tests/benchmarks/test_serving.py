"""Pairing, intervals and marks of the serving benchmark, by hand."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.statistics import Interval
from benchmarks.serving.load import Block, Questions, Workload
from benchmarks.serving.report import Row, find_misses, summarise
from benchmarks.serving.statistics import (
    SIDES,
    Round,
    compare_first_tokens,
    compare_gaps,
    compare_throughput,
    order_sides,
    overlap,
)

WORKLOAD = Workload(streams=1, stream=True, requests=2, tokens=10)


def block(speed: float = 10.0, first: float = 0.1, gap: float = 0.05) -> Block:
    return Block(seconds=20 / speed, tokens=20, first_tokens=[first, first], gaps=[gap] * 18)


def rounds(ours: Sequence[Block], plain: Sequence[Block], control: Sequence[Block] | None = None) -> list[Round]:
    pairs = zip(ours, plain, control or plain, strict=True)
    return [{"ours": own, "plain": other, "control": third} for own, other, third in pairs]


@given(st.integers(0, 100))
def test_six_rounds_have_every_order_once(seed: int) -> None:
    orders = order_sides(6, seed)
    assert len(set(orders)) == 6
    assert all(sorted(order) == sorted(SIDES) for order in orders)


def test_no_side_has_a_place_more_often() -> None:
    places = Counter((place, side) for order in order_sides(12, 0) for place, side in enumerate(order))
    assert set(places.values()) == {4}


def test_the_ratio_is_the_geometric_mean_of_pairs() -> None:
    # The machine is four times slower in the second round: that cancels. √(2 · ½) = 1.
    found = rounds(ours=[block(20), block(2.5)], plain=[block(10), block(5)])
    ratio = compare_throughput(found, "ours")
    assert ratio.estimate == pytest.approx(1.0)
    # Logarithms ±ln 2: standard error ln 2, t(0.975; 1) = 12.7062.
    assert ratio.high == pytest.approx(math.exp(12.7062 * math.log(2)), rel=1e-4)


def test_the_same_blocks_have_the_ratio_1() -> None:
    found = rounds(ours=[block(20), block(5)], plain=[block(20), block(5)])
    assert compare_throughput(found, "ours") == Interval(1.0, 1.0, 1.0)
    assert compare_gaps(found, "control") == Interval(1.0, 1.0, 1.0)


def test_what_is_added_to_the_first_token() -> None:
    found = rounds(ours=[block(first=0.108), block(first=0.110)], plain=[block(first=0.1), block(first=0.1)])
    added = compare_first_tokens(found, "ours")
    assert added.estimate == pytest.approx(9.0)
    assert added.low == pytest.approx(8.0)
    assert added.high == pytest.approx(10.0)


def test_gaps_are_pooled_over_the_rounds() -> None:
    long = block()
    long.gaps = [0.5] * 18
    found = rounds(ours=[long, block()], plain=[block(), block()])
    gaps = compare_gaps(found, "ours")
    assert gaps.estimate == pytest.approx(10.0)
    assert gaps.low == pytest.approx(1.0)
    assert gaps.high == pytest.approx(10.0)


def test_one_round_has_no_interval() -> None:
    found = rounds(ours=[block(5)], plain=[block(10)])
    assert compare_throughput(found, "ours") == Interval(0.5, None, None)
    assert compare_gaps(found, "ours").low is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Interval(1, 0.9, 1.1), Interval(1, 1.05, 1.2), True),
        (Interval(1, 0.9, 1.0), Interval(1, 1.0, 1.2), True),
        (Interval(1, 0.7, 0.8), Interval(1, 0.9, 1.1), False),
        (Interval(1, None, None), Interval(1, 0.9, 1.1), True),
    ],
)
def test_overlap(first: Interval, second: Interval, expected: bool) -> None:
    assert overlap(first, second) is expected
    assert overlap(second, first) is expected


def row(ours: Block, plain: Block, control: Block | None = None, learner: str = "idle") -> Row:
    found = rounds([ours] * 3, [plain] * 3, [control or plain] * 3)
    return summarise(WORKLOAD, learner, found, 0.1, 0, 0)  # pyright: ignore[reportArgumentType]


def test_a_row_that_meets_every_mark() -> None:
    assert find_misses([row(block(9.6, first=0.109, gap=0.0549), block(10))]) == []


def test_each_mark_that_is_missed_is_said() -> None:
    misses = find_misses([row(block(9.4, first=0.111, gap=0.056), block(10))])
    assert [miss.split(": ")[1].split(" ")[0] for miss in misses] == ["throughput", "11.0", "p99"]


def test_gaps_are_held_against_the_control_s() -> None:
    assert find_misses([row(block(gap=0.06), block(gap=0.05), control=block(gap=0.055))]) == []


def test_a_slower_row_within_the_control_s_interval_is_no_miss() -> None:
    control = [block(8), block(10), block(12.5)]
    found = rounds(ours=[block(9)] * 3, plain=[block(10)] * 3, control=control)
    assert find_misses([summarise(WORKLOAD, "idle", found, 0.0, 0, 0)]) == []


def test_rows_in_training_have_no_marks_but_failures() -> None:
    slow = row(block(1), block(10), learner="training")
    assert find_misses([slow]) == []
    failing = block(10)
    failing.failures = ["status 500"]
    assert find_misses([row(failing, block(10), learner="training")]) == ["1 streamed, training: 3 requests failed"]


def test_a_row_of_whole_answers_has_no_figures_of_streams() -> None:
    whole = Workload(streams=1, stream=False, requests=2, tokens=10)
    found = summarise(whole, "idle", rounds([block()] * 2, [block()] * 2), 0.0, 0, 0)
    assert found.first_token_added_ms is None
    assert found.gap_p99_ratio is None
    assert found.throughput_ratio == 1.0


def test_no_question_is_asked_twice_and_topics_repeat() -> None:
    questions = Questions()
    first, second = questions.draw(3), questions.draw(3)
    assert len({*first, *second}) == 6
    assert [text[8:] for text in first] == [text[8:] for text in second]
