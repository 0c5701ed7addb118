"""Naive, SPO, ASymPO and GPG in closed form. None looks at the log-probabilities of what sampled."""

import math

import pytest
import torch

from online_rl.objectives.asympo import asympo_loss
from online_rl.objectives.gpg import gpg_loss
from online_rl.objectives.naive import naive_loss
from online_rl.objectives.spo import spo_loss
from tests.learner.inputs import gradient, make_inputs

FREE = {"p_low": 0.0, "p_high": 1.0, "floor": 1e-6}
"""ASymPO without its stabiliser."""


def two_responses(good=(-1.0, -3.0), bad=(-4.0,), advantage=0.5):
    """A good response of two tokens (S = 2) and a bad one of one token (S = 4)."""
    advantages = [advantage] * len(good) + [-advantage] * len(bad)
    return make_inputs([*good, *bad], None, advantages, lengths=[len(good), len(bad)])


def test_naive_by_hand():
    inputs = two_responses()
    loss, metrics = naive_loss(inputs)
    assert loss.item() == pytest.approx((0.5 * 2 - 0.5 * 4) / 2)
    # −A/(l·B): the shorter response has the larger gradient for each token.
    assert gradient(loss, inputs) == pytest.approx([-0.125, -0.125, 0.25])
    assert metrics["policy/negative_share"] == pytest.approx(2 / 3)


def test_spo_by_hand():
    inputs = two_responses()
    loss, metrics = spo_loss(inputs, alpha=0.2)
    assert loss.item() == pytest.approx((0.5 * 2 - 0.2 * 0.5 * 4) / 2)
    assert gradient(loss, inputs) == pytest.approx([-0.125, -0.125, 0.05])
    assert metrics["policy/negative_share"] == pytest.approx(0.4 / 1.4)


def test_spo_between_naive_and_positive_only():
    inputs = two_responses()
    naive, positive = naive_loss(inputs)[0], spo_loss(inputs, alpha=0.0)[0]
    assert spo_loss(inputs, alpha=1.0)[0].item() == naive.item()
    assert gradient(spo_loss(inputs, alpha=1.0)[0], inputs) == gradient(naive, inputs)
    assert positive.item() == pytest.approx(0.5)
    assert gradient(positive, inputs) == pytest.approx([-0.125, -0.125, 0.0])


def test_gpg_by_hand():
    inputs = two_responses()
    loss, _ = gpg_loss(inputs)
    assert loss.item() == pytest.approx((0.5 * (1 + 3) - 0.5 * 4) / 3)
    assert gradient(loss, inputs) == pytest.approx([-0.5 / 3, -0.5 / 3, 0.5 / 3])


def test_asympo_by_hand():
    inputs = two_responses()
    loss, metrics = asympo_loss(inputs, **FREE)
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    # −A/(l·B·S): the naive gradient divided by S = 2 and S = 4, S itself a constant.
    assert gradient(loss, inputs) == pytest.approx([-0.125 / 2, -0.125 / 2, 0.25 / 4])
    assert metrics["policy/negative_share"] == pytest.approx(0.5)
    assert metrics["policy/scale_min"] == pytest.approx(2.0)


@pytest.mark.parametrize("bad", [-0.5, -4.0, -40.0])
def test_asympos_value_is_0_on_a_zero_sum_group_whatever_the_policy(bad):
    inputs = two_responses(bad=(bad, bad))
    assert asympo_loss(inputs, p_low=0.01, p_high=0.99, floor=0.01)[0].item() == pytest.approx(0.0, abs=1e-6)


def test_asympo_holds_near_certain_good_and_near_impossible_bad_tokens():
    # p = e^−0.001 > 0.99 is held where A ≥ 0; p = e^−9 < 0.01 is held where A < 0.
    inputs = two_responses(good=(-0.001, -2.0), bad=(-9.0, -2.0))
    loss, metrics = asympo_loss(inputs, p_low=0.01, p_high=0.99, floor=0.01)
    held_good, held_bad = (-math.log(0.99) + 2.0) / 2, (-math.log(0.01) + 2.0) / 2
    expected = [0.0, -0.5 / (2 * 2 * held_good), 0.0, 0.5 / (2 * 2 * held_bad)]
    assert gradient(loss, inputs) == pytest.approx(expected)
    assert metrics["policy/held_ratio"] == 0.5
    # The other way round nothing is held: good tokens may be rare, bad ones certain.
    assert asympo_loss(two_responses((-9.0,), (-0.001,)), **FREE)[1]["policy/held_ratio"] == 0.0


@pytest.mark.parametrize(
    ("logprob", "advantage", "flows"), [(-0.02, 1, 1), (-0.01, 1, 0), (-4.6, -1, 1), (-5.0, -1, 0)]
)
def test_the_edges_of_asympos_stabiliser(logprob, advantage, flows):
    # log 0.99 = −0.01005, log 0.01 = −4.605
    inputs = make_inputs([logprob], None, [float(advantage)])
    loss, _ = asympo_loss(inputs, p_low=0.01, p_high=0.99, floor=1e-3)
    assert gradient(loss, inputs) == pytest.approx([advantage / logprob * flows])


def test_asympos_floor_bounds_what_a_certain_bad_response_weighs():
    inputs = make_inputs([-1e-6], None, [-1.0])
    loss, _ = asympo_loss(inputs, p_low=0.01, p_high=0.99, floor=0.05)
    assert gradient(loss, inputs) == pytest.approx([1 / 0.05])


def test_logprobs_that_are_there_are_described_and_change_nothing():
    without, carrying = two_responses(), two_responses()
    object.__setattr__(carrying, "behavior_logprobs", torch.tensor([-2.0, -3.0, -4.0]))
    for loss in (naive_loss, gpg_loss, lambda inputs: asympo_loss(inputs, **FREE)):
        (bare, bare_metrics), (same, metrics) = loss(without), loss(carrying)
        assert same.item() == bare.item()
        assert metrics["policy/ratio_max"] == pytest.approx(math.e)
        assert metrics["policy/mask_ratio"] == 0.0
        assert "policy/ratio_max" not in bare_metrics
