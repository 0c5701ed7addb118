import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.probe import judge_delivery

floats = st.floats(-20, 0)


def noisy(values: list[float], sigma: float, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [value + generator.gauss(0, sigma) for value in values]


LEARNER = [-1.0 - 0.1 * index for index in range(60)]
PARENT = [value + (0.2 if index % 2 else -0.2) for index, value in enumerate(LEARNER)]


def test_the_new_weights_are_recognised_through_engine_noise():
    verdict = judge_delivery(noisy(LEARNER, 0.04), LEARNER, PARENT, 0.15)
    assert verdict.accepted
    assert verdict.distinguishable
    assert verdict.mismatch_mean < 0.05


def test_the_old_weights_are_refused_even_within_tolerance():
    verdict = judge_delivery(noisy(PARENT, 0.04), LEARNER, PARENT, 0.3)
    assert not verdict.accepted
    assert "closer to the parent" in verdict.reason


def test_neither_of_the_two_is_refused():
    assert not judge_delivery([value - 3 for value in LEARNER], LEARNER, PARENT, 0.15).accepted


def test_equal_versions_are_accepted_on_tolerance_and_it_is_said():
    verdict = judge_delivery(noisy(LEARNER, 0.04), LEARNER, LEARNER, 0.15)
    assert (verdict.accepted, verdict.distinguishable) == (True, False)
    assert "cannot tell" in verdict.reason


def test_a_difference_far_below_the_noise_decides_nothing():
    parent = [value + 0.001 for value in LEARNER]
    for seed in range(20):
        verdict = judge_delivery(noisy(LEARNER, 0.04, seed), LEARNER, parent, 0.15)
        assert (verdict.accepted, verdict.distinguishable) == (True, False)


def test_figures_by_hand():
    verdict = judge_delivery([-1.0, -2.0], [-1.1, -1.9], [-1.0, -2.0], 1.0)
    assert verdict.mismatch_mean == pytest.approx(0.1)
    assert verdict.mismatch_kl == pytest.approx(((math.exp(-0.1) - 0.9) + (math.exp(0.1) - 1.1)) / 2)
    assert verdict.separation == pytest.approx(0.1)
    assert verdict.parent_distance == 0


@given(st.lists(st.tuples(floats, floats, floats), min_size=1, max_size=50), st.floats(0.01, 1))
def test_nothing_beyond_the_tolerance_is_ever_accepted(rows: list[tuple[float, float, float]], tolerance: float):
    engine, learner, parent = (list(column) for column in zip(*rows, strict=True))
    verdict = judge_delivery(engine, learner, parent, tolerance)
    assert verdict.mismatch_kl >= -1e-12
    if verdict.accepted:
        assert verdict.mismatch_mean <= tolerance


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_logprobs_that_are_not_finite_are_refused(bad: float):
    assert not judge_delivery([bad, -1.0], [-1.0, -1.0], [-1.0, -1.0], 1.0).accepted


def test_nothing_probed_proves_nothing():
    with pytest.raises(ValueError, match="cannot compare"):
        judge_delivery([], [], [], 1.0)
