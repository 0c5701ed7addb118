"""The SAO loss in closed form, and gradient only where a ratio lies inside the trust region."""

import math

import pytest
import torch

from online_rl.objectives import MissingBehaviorLogprobs, Needs, make_objective
from online_rl.objectives.ratios import describe_ratios
from online_rl.objectives.sao import double_sided, sao_loss
from online_rl.settings import LearnerSettings
from tests.learner.inputs import make_inputs


def test_the_loss_by_hand():
    # Ratios 1 and 2: −(1·0.5·(−1) + 2·(−1)·(−2)) / 2 = −(−0.5 + 4) / 2
    inputs = make_inputs([-1.0, -2.0], [-1.0, -2.0 - math.log(2)], [0.5, -1.0])
    loss, metrics = sao_loss(inputs, epsilon_low=0.3, epsilon_high=5.0)
    assert loss.item() == pytest.approx(-1.75)
    loss.backward()
    # d/dlogπ = −f·A / N: the ratio itself is a constant.
    assert inputs.policy_logprobs.grad is not None
    assert inputs.policy_logprobs.grad.tolist() == pytest.approx([-0.25, 1.0])
    assert metrics["policy/ratio_max"] == pytest.approx(2.0)
    assert metrics["policy/mask_ratio"] == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_outside_the_region_nothing_flows_whatever_the_sign(advantage):
    inputs = make_inputs([-1.0, -1.0, -1.0], [-1.0 + 2, -1.0 - 2, -1.0], [advantage] * 3)
    loss, metrics = sao_loss(inputs, epsilon_low=0.3, epsilon_high=5.0)
    loss.backward()
    assert inputs.policy_logprobs.grad is not None
    assert inputs.policy_logprobs.grad.tolist() == pytest.approx([0.0, 0.0, -advantage / 3])
    assert metrics["policy/mask_ratio"] == pytest.approx(2 / 3)


def test_the_edges_are_outside():
    ratios = torch.tensor([0.7, 0.7001, 5.9999, 6.0, math.inf, 0.0])
    assert double_sided(ratios, 0.3, 5.0).tolist() == pytest.approx([0.0, 0.7001, 5.9999, 0.0, 0.0, 0.0])


def test_extreme_ratios_leave_everything_finite():
    inputs = make_inputs([-0.1, -300.0], [-500.0, -0.1], [1.0, 1.0])
    loss, metrics = sao_loss(inputs, epsilon_low=0.3, epsilon_high=5.0)
    loss.backward()
    assert loss.item() == 0.0
    assert all(math.isfinite(value) for value in metrics.values())
    assert inputs.policy_logprobs.grad is not None
    assert inputs.policy_logprobs.grad.tolist() == [0.0, 0.0]


def test_trap_17_small_ratios_do_not_multiply_over_a_long_answer():
    """2,000 tokens of ratio 1.1 each: a ratio of the whole sequence would be 1.1^2000, beyond any float."""
    tokens = 2000
    inputs = make_inputs([-1.0] * tokens, [-1.0 - math.log(1.1)] * tokens, [1.0] * tokens)
    loss, metrics = sao_loss(inputs, epsilon_low=0.3, epsilon_high=5.0)
    loss.backward()
    assert metrics["policy/mask_ratio"] == 0.0
    assert metrics["policy/ratio_max"] == pytest.approx(1.1)
    assert inputs.policy_logprobs.grad is not None
    assert inputs.policy_logprobs.grad.tolist() == pytest.approx([-1.1 / tokens] * tokens)


def test_no_tokens_at_all():
    loss, metrics = sao_loss(make_inputs([], [], [], total=8), epsilon_low=0.3, epsilon_high=5.0)
    assert loss.item() == 0.0
    assert metrics["policy/mask_ratio"] == 0.0


def test_dropped_tokens_stay_in_the_mean_and_parts_add_up():
    whole = make_inputs([-1.0, -1.0, -1.0, -2.0], [-1.0, 9.0, -1.0, -2.0], [1.0, 1.0, 2.0, 3.0])
    parts = [
        make_inputs([-1.0, -1.0], [-1.0, 9.0], [1.0, 1.0], total=4),
        make_inputs([-1.0, -2.0], [-1.0, -2.0], [2.0, 3.0], total=4),
    ]
    loss = lambda inputs: sao_loss(inputs, epsilon_low=0.3, epsilon_high=5.0)[0].item()  # noqa: E731
    assert loss(whole) == pytest.approx((1 + 2 + 6) / 4)
    assert loss(whole) == pytest.approx(sum(map(loss, parts)))


def test_missing_logprobs_are_refused():
    with pytest.raises(MissingBehaviorLogprobs, match="behavior_logprobs"):
        sao_loss(make_inputs([-1.0], None, [1.0]), epsilon_low=0.3, epsilon_high=5.0)


def test_the_objective_takes_its_parameters_from_the_settings():
    objective = make_objective(LearnerSettings(epsilon_high=0.5))
    loss, _ = objective.loss(make_inputs([-1.0], [-1.0 - math.log(2)], [1.0]))
    assert objective.needs == Needs(behavior_logprobs=True, versions=True, value_model=True)
    assert loss.item() == 0.0


def test_the_histogram_of_ratios_holds_every_token_once():
    ratios = torch.tensor([0.1, 0.5, 0.99, 1.0, 1.04, 1.3, 2.0, 50.0])
    metrics = describe_ratios(ratios.log(), torch.zeros(8, dtype=torch.bool))
    shares = {name: share for name, share in metrics.items() if name.startswith("ratio/")}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["ratio/0_0.5"] == pytest.approx(1 / 8)
    assert shares["ratio/0.95_1.05"] == pytest.approx(3 / 8)
    assert shares["ratio/2_inf"] == pytest.approx(2 / 8)
