"""The guard lets the policy go a little way, and holds it from there on."""

import pytest
import torch

from online_rl.kl_guard import guard_weight
from online_rl.settings import LearnerSettings
from online_rl.trainer import Trainer
from tests.learner.tiny import SETTINGS, make_trainer, make_trajectory


@pytest.mark.parametrize(
    ("divergence", "weight"), [(0.0, 0.0), (0.2, 0.0), (0.3, 0.015), (0.35, 0.0225), (0.4, 0.03), (7.0, 0.03)]
)
def test_none_up_to_the_free_divergence_and_all_of_it_from_twice_that_on(divergence: float, weight: float):
    assert guard_weight(divergence, coefficient=0.03, free=0.2) == pytest.approx(weight)


@pytest.mark.parametrize("divergence", [0.0, 0.01, 5.0])
def test_with_nothing_free_it_is_always_the_coefficient(divergence: float):
    assert guard_weight(divergence, coefficient=0.03, free=0.0) == 0.03


def drift_away(model_folder, free: float) -> tuple[Trainer, list[float]]:
    """A policy that left the base, trained on answers worth nothing, good or bad: only the guard can move it."""
    changes = {"objective": "naive", "kl_free": free, "kl_coefficient": 1.0, "learning_rate": 5e-3}
    settings = LearnerSettings.model_validate(SETTINGS.model_dump() | changes)
    trainer = make_trainer(model_folder, settings)
    torch.manual_seed(0)
    for parameter in trainer.policy.parameters().values():
        parameter.data.normal_(std=0.05)
    batch = [make_trajectory(number, reward=0.0) for number in range(8)]
    return trainer, [trainer.update(batch)["policy/kl_to_base"] for _ in range(12)]


def test_a_policy_within_its_bounds_is_left_alone(model_folder):
    trainer, divergences = drift_away(model_folder, free=100.0)
    assert divergences[0] > 1e-3
    assert divergences == [divergences[0]] * 12
    assert trainer.update([make_trajectory(0, reward=0.0)])["policy/kl_weight"] == 0.0


def test_a_policy_beyond_its_bounds_is_pulled_back(model_folder):
    _, divergences = drift_away(model_folder, free=1e-6)
    assert divergences[-1] < 0.5 * divergences[0]
