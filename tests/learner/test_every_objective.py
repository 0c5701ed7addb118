"""What holds for every objective of the catalogue."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_rl.baselines import make_baseline
from online_rl.batch import make_batch
from online_rl.batch_advantages import spread_advantages
from online_rl.objectives import OBJECTIVES, MissingBehaviorLogprobs, ObjectiveInputs, make_objective
from online_rl.settings import LearnerSettings
from online_rl.trainer import objective_inputs
from tests.learner.inputs import gradient, make_inputs
from tests.learner.tiny import make_trajectory

NAMES = sorted(OBJECTIVES)
CURRENT_POLICY = {"naive", "spo", "asympo", "gpg"}
VALUE_MODEL = {"sao", "ppo"}


def objective(name, **changes):
    return make_objective(LearnerSettings.model_validate({"objective": name, **changes}))


def test_the_setting_offers_the_catalogue():
    assert set(get_args(LearnerSettings.model_fields["objective"].annotation)) == set(OBJECTIVES)


@pytest.mark.parametrize("name", NAMES)
def test_what_each_needs(name):
    needs = objective(name).needs
    assert needs.behavior_logprobs == needs.versions == (name not in CURRENT_POLICY)
    assert needs.value_model == (name in VALUE_MODEL)
    assert needs.groups == (name in CURRENT_POLICY | {"grpo", "grpo_dis", "cispo", "gspo"})
    assert (make_baseline(LearnerSettings.model_validate({"objective": name})) is None) == needs.value_model


@pytest.mark.parametrize("name", NAMES)
def test_missing_logprobs_are_refused_where_they_are_needed(name):
    inputs = make_inputs([-1.0, -2.0], None, [1.0, 1.0])
    if name in CURRENT_POLICY:
        assert math.isfinite(objective(name).loss(inputs)[0].item())
    else:
        with pytest.raises(MissingBehaviorLogprobs, match="behavior_logprobs"):
            objective(name).loss(inputs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_tokens_at_all(name, lengths):
    inputs = make_inputs([], [], [], total=8, lengths=lengths, total_trajectories=2)
    loss, metrics = objective(name).loss(inputs)
    assert loss.item() == 0.0
    assert gradient(loss, inputs) == []
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_extreme_ratios_leave_everything_finite(name, advantage):
    inputs = make_inputs([-1e-9, -300.0, -1e4], [-500.0, -1e-9, -1.0], [advantage] * 3, lengths=[1, 1, 1])
    loss, metrics = objective(name).loss(inputs)
    assert math.isfinite(loss.item())
    assert all(math.isfinite(value) for value in gradient(loss, inputs))
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_advantages_of_0_teach_nothing(name):
    inputs = make_inputs([-1.0, -2.0], [-1.5, -1.5], [0.0, 0.0])
    loss, _ = objective(name).loss(inputs)
    assert loss.item() == 0.0
    assert gradient(loss, inputs) == [0.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_at_ratio_1_what_is_better_than_expected_becomes_likelier(name):
    inputs = make_inputs([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.5], lengths=[1, 1])
    better, worse = gradient(objective(name).loss(inputs)[0], inputs)
    assert better < 0 < worse


def make_up_logprobs(trajectory):
    """−5..−1 for each action token, by trajectory and place alone."""
    places = torch.arange(sum(trajectory.action_mask), dtype=torch.float64)
    return -3.0 + 2.0 * torch.sin(7.0 * trajectory.generated_at + places)


def losses(name, trajectories, max_tokens, order):
    """The loss of a batch and its gradient for each token, in the order of `trajectories`, whatever the packs."""
    learner = LearnerSettings.model_validate({"objective": name})
    shuffled = [trajectories[index] for index in order]
    batch = make_batch(shuffled, max_tokens=max_tokens, gamma=1.0)
    baseline = make_baseline(learner)
    numbers = [0.5 - t.reward for t in shuffled] if baseline is None else baseline.advantages(shuffled)
    total, gradients = 0.0, {}
    for part, advantages in zip(batch.packs, spread_advantages(batch, numbers), strict=True):
        members = [shuffled[index] for index in part.pack.members]
        logprobs = torch.cat([make_up_logprobs(member) for member in members]).requires_grad_()
        loss, _ = make_objective(learner).loss(objective_inputs(part, logprobs, advantages.double(), batch))
        total += loss.item()
        (found,) = torch.autograd.grad(loss, logprobs)
        for member, piece in zip(members, found.split(part.pack.lengths.tolist()), strict=True):
            gradients[member.trajectory_id] = piece
    return total, torch.cat([gradients[trajectory.trajectory_id] for trajectory in trajectories])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_neither_packing_nor_order_nor_the_split_of_a_group_changes_anything(name, data):
    count = data.draw(st.integers(1, 7))
    groups = [data.draw(st.sampled_from([None, "a", "b"])) for _ in range(count)]
    trajectories = [make_trajectory(n, group_id=group, group_size=2) for n, group in enumerate(groups)]
    order = data.draw(st.permutations(range(count)))
    whole, expected = losses(name, trajectories, 10_000, range(count))
    parts, got = losses(name, trajectories, data.draw(st.integers(1, 60)), order)
    assert parts == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-7)


def test_the_advantage_is_a_constant():
    """No objective lets a gradient into its advantages, or into the log-probabilities of what sampled."""
    for name in NAMES:
        inputs: ObjectiveInputs = make_inputs([-1.0, -2.0], [-1.1, -1.9], [0.5, -0.5], lengths=[1, 1])
        wanting = replace(inputs, policy_logprobs=inputs.policy_logprobs.detach())
        assert not objective(name).loss(wanting)[0].requires_grad
