"""PPO's clip, CISPO and GSPO in closed form: values, where the gradient flows, and the edges of their regions."""

import math

import pytest

from online_rl.objectives.cispo import cispo_loss
from online_rl.objectives.gspo import gspo_loss
from online_rl.objectives.ppo import ppo_loss
from tests.learner.inputs import gradient, make_inputs

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def at_ratios(ratios, advantages, **changes):
    """Tokens of log-probability −1 under the policy, sampled so that their ratios are `ratios`."""
    return make_inputs([-1.0] * len(ratios), [-1.0 - math.log(r) for r in ratios], advantages, **changes)


def test_ppo_at_ratio_1_is_the_policy_gradient():
    inputs = at_ratios([1.0, 1.0], [0.5, -1.0])
    loss, metrics = ppo_loss(inputs, **CLIP)
    # −(0.5 − 1)/2, and d/dlogπ = −r·A/N.
    assert loss.item() == pytest.approx(0.25)
    assert gradient(loss, inputs) == pytest.approx([-0.25, 0.5])
    assert metrics["policy/mask_ratio"] == 0.0


def test_ppo_clips_what_would_gain_and_only_that():
    # Good tokens stop above 1.28, bad ones below 0.8; a bad token of ratio 3 keeps its full weight.
    inputs = at_ratios([1.3, 0.5, 0.7, 3.0], [1.0, 1.0, -1.0, -1.0])
    loss, metrics = ppo_loss(inputs, **CLIP)
    assert loss.item() == pytest.approx(-(1.28 + 0.5 - 0.8 - 3.0) / 4)
    assert gradient(loss, inputs) == pytest.approx([0.0, -0.5 / 4, 0.0, 3.0 / 4])
    assert metrics["policy/mask_ratio"] == 0.5


@pytest.mark.parametrize(("ratio", "advantage", "flows"), [(1.27, 1, 1), (1.29, 1, 0), (0.81, -1, 1), (0.79, -1, 0)])
def test_the_edges_of_ppos_clip(ratio, advantage, flows):
    inputs = at_ratios([ratio], [float(advantage)])
    loss, _ = ppo_loss(inputs, **CLIP)
    assert gradient(loss, inputs) == pytest.approx([-ratio * advantage * flows], rel=1e-5)


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    inputs = at_ratios([0.1, 2.0, 9.0], [1.0, -1.0, 1.0])
    loss, metrics = cispo_loss(inputs, epsilon_high=5.0)
    # Weights 0.1, 2 and 6 on logπ = −1; the weight itself has no gradient.
    assert loss.item() == pytest.approx((0.1 - 2.0 + 6.0) / 3)
    assert gradient(loss, inputs) == pytest.approx([-0.1 / 3, 2.0 / 3, -6.0 / 3])
    assert metrics["policy/mask_ratio"] == pytest.approx(1 / 3)


def test_gspo_has_one_ratio_for_a_response():
    # Token ratios 2 and 1/2 give s = 1; the second response has s = √(1.21) = 1.1, clipped to 1.05.
    inputs = at_ratios([2.0, 0.5, 1.1, 1.1], [1.0, 1.0, 1.0, 1.0], lengths=[2, 2])
    loss, metrics = gspo_loss(inputs, clip_low=0.05, clip_high=0.05)
    assert loss.item() == pytest.approx(-(1.0 + 1.05) / 2)
    # ds/dlogπ_t = s / l: 1/2 of each response's −A/B = −1/2.
    assert gradient(loss, inputs) == pytest.approx([-0.25, -0.25, 0.0, 0.0])
    assert metrics["policy/mask_ratio"] == 0.5


@pytest.mark.parametrize(("ratio", "advantage", "flows"), [(1.03, 1, 1), (1.05, 1, 0), (0.98, -1, 1), (0.96, -1, 0)])
def test_the_edges_of_gspos_clip(ratio, advantage, flows):
    inputs = at_ratios([ratio, ratio], [float(advantage)] * 2)
    loss, _ = gspo_loss(inputs, clip_low=0.03, clip_high=0.04)
    assert gradient(loss, inputs) == pytest.approx([-ratio * advantage * flows / 2] * 2, rel=1e-5)


def test_ppo_stays_finite_where_it_does_not_clip():
    inputs = make_inputs([-0.1], [-500.0], [-1.0])
    loss, _ = ppo_loss(inputs, **CLIP)
    assert loss.item() == pytest.approx(math.exp(20.0), rel=1e-4)
    assert gradient(loss, inputs) == [0.0]
