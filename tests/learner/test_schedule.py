"""The policy's learning rate over the updates, by hand."""

import math

import pytest
from pydantic import ValidationError

from online_rl.schedule import schedule_learning_rate
from online_rl.settings import LearnerSettings
from tests.learner.test_trainer import with_settings
from tests.learner.tiny import make_trainer, make_trajectories


def rates(*updates, **changes):
    settings = LearnerSettings.model_validate(
        {"learning_rate": 1.0, "schedule": "constant", "schedule_floor": 0.2} | changes
    )
    return [schedule_learning_rate(update, settings) for update in updates]


def test_constant_after_the_warm_up():
    assert rates(0, 1, 2, 3, 4, 10**6, warmup_updates=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(0, 5) == [1.0, 1.0]


def test_linear_to_the_floor():
    found = rates(0, 2, 4, 6, 10, 11, schedule="linear", warmup_updates=2, schedule_updates=10)
    assert found == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.2, 0.2])


def test_cosine_to_the_floor():
    found = rates(0, 2, 4, 8, 9, schedule="cosine", schedule_updates=8)
    quarter = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4))
    assert found == pytest.approx([1.0, quarter, 0.6, 0.2, 0.2])


def test_a_schedule_without_room_is_refused():
    with pytest.raises(ValidationError, match="schedule_updates is 5"):
        LearnerSettings(schedule="linear", warmup_updates=5, schedule_updates=5)


def test_the_trainer_takes_it_and_goes_on_with_it_after_a_resume(model_folder):
    settings = with_settings(schedule="linear", schedule_updates=4, schedule_floor=0.0)
    trainer = make_trainer(model_folder, settings)
    found = [trainer.update(make_trajectories(4))["policy/learning_rate"] for _ in range(2)]
    resumed = make_trainer(model_folder, settings)
    resumed.load(trainer.tensors())
    resumed.counters = trainer.counters
    found += [resumed.update(make_trajectories(4))["policy/learning_rate"] for _ in range(3)]
    assert found == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0.0])
    before = {name: p.clone() for name, p in resumed.policy.parameters().items()}
    resumed.update(make_trajectories(4))
    assert all(p.equal(before[name]) for name, p in resumed.policy.parameters().items())
