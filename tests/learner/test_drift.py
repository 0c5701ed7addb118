"""A change of taste is found once; learning and chance are not taken for one."""

import math

import numpy as np
import pytest

from online_rl.change_points import find_fall
from online_rl.drift import DriftMonitor
from online_rl.drift_events import Recovery, Shift
from online_rl.drift_state import DriftState
from online_rl.settings import DriftSettings


def learning_curve(rng, low, high, ramp, length):
    """Bernoulli rewards whose rate rises from `low` to `high` within `ramp` trajectories."""
    rate = low + (high - low) * np.clip(np.arange(length) / ramp, 0, 1)
    return (rng.random(length) < rate).astype(float).tolist()


def watch(rewards, monitor=None):
    monitor = monitor or DriftMonitor(DriftSettings())
    return [event for at, reward in enumerate(rewards) for event in monitor.observe(reward, None, float(at))]


def test_a_fall_of_the_reward_is_one_shift_with_its_recovery():
    """While the policy already learns the new taste; in one of these 40 it does so before the fall stands out."""
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rewards = learning_curve(rng, 0.2, 0.8, 150, 300) + learning_curve(rng, 0.2, 0.8, 200, 300)
        shifts = [event for event in watch(rewards) if isinstance(event, Shift)]
        assert len(shifts) <= 1, seed
        for shift in shifts:
            found += 1
            assert 300 <= shift.trajectories < 400
            assert shift.before > 0.5
            assert shift.after < 0.5
            assert abs(shift.evidence["changed_at"] - 300) < 30
    assert found >= 39


@pytest.mark.parametrize("ramp", [100, 200, 320])
def test_learning_is_no_shift(ramp):
    for seed in range(30):
        rewards = learning_curve(np.random.default_rng(seed), 0.2, 0.9, ramp, 400)
        assert watch(rewards) == [], seed


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95])
def test_chance_is_no_shift(rate):
    curves = (learning_curve(np.random.default_rng(seed), rate, rate, 1, 600) for seed in range(40))
    found = sum(isinstance(event, Shift) for curve in curves for event in watch(curve))
    assert found <= 2  # in 24,000 rewards


def test_recovery_is_counted_from_the_change():
    rewards = [1.0] * 100 + [0.0] * 60 + [1.0] * 100
    shift, recovery = watch(rewards)
    assert isinstance(shift, Shift)
    assert shift.before == 1.0
    assert shift.after < 0.5
    # Found so early that the twelve last values hold good ones still: the change seems four trajectories earlier.
    assert shift.evidence["changed_at"] == 96.0
    assert isinstance(recovery, Recovery)
    # 60 bad ones, and then 29 of the last 32 must be good: 29/32 ≥ 0.9 × 1.
    assert recovery.recovered_after == 4 + 60 + 29
    assert recovery.recovered_seconds == 4 + 60 + 29 - 1


def test_a_recovery_below_zero_is_seen_where_the_old_level_is_reached():
    rewards = [-0.3] * 100 + [-1.0] * 60 + [-0.3] * 60
    _, recovery = watch(rewards)
    assert isinstance(recovery, Recovery)


def test_the_residual_finds_a_shift_that_the_reward_hides():
    rng = np.random.default_rng(0)
    monitor = DriftMonitor(DriftSettings())
    rewards = learning_curve(rng, 0.2, 0.8, 1, 100) + learning_curve(rng, 0.4, 0.4, 1, 60)
    expected = [0.8] * 160
    events = [
        event
        for at, (reward, value) in enumerate(zip(rewards, expected, strict=True))
        for event in monitor.observe(reward, reward - value, float(at))
    ]
    assert len([event for event in events if isinstance(event, Shift)]) == 1


def test_a_value_model_that_learns_is_no_shift():
    monitor = DriftMonitor(DriftSettings())
    rewards = learning_curve(np.random.default_rng(1), 0.7, 0.7, 1, 200)
    assert not [e for i, r in enumerate(rewards) for e in monitor.observe(r, r - 0.7 * min(1, i / 100), float(i))]


def test_values_that_learn_meanwhile_do_not_hide_when_taste_changed():
    """The residual falls all the time; the shift is where the reward fell, and not recovered from at once."""
    monitor = DriftMonitor(DriftSettings())
    rewards = [1.0] * 64 + [0.0] * 12
    events = [e for i, r in enumerate(rewards) for e in monitor.observe(r, r - min(1.2, i / 40), float(i))]
    (shift,) = events
    assert isinstance(shift, Shift)
    assert 54.0 <= shift.evidence["changed_at"] <= 64.0
    assert shift.after < 0.8


@pytest.mark.parametrize("cut", [10, 150, 320, 350, 1500])
def test_resuming_changes_nothing(cut):
    rng = np.random.default_rng(3)
    rewards = learning_curve(rng, 0.2, 0.8, 150, 300) + learning_curve(rng, 0.2, 0.9, 200, 1300)
    rewards += learning_curve(rng, 0.1, 0.1, 1, 100)
    whole = watch(rewards)
    monitor = DriftMonitor(DriftSettings())
    first = watch(rewards[:cut], monitor)
    resumed = DriftMonitor(DriftSettings(), DriftState.model_validate_json(monitor.state.model_dump_json()))
    second = [e for at, r in enumerate(rewards[cut:], cut) for e in resumed.observe(r, None, float(at))]
    assert first + second == whole
    assert len(resumed.state.rewards) <= 256


def test_the_fall_is_found_where_it_is():
    fall = find_fall([1.0] * 20 + [0.0] * 12)
    assert fall is not None
    assert (fall.since, fall.before, fall.after) == (12, 1.0, 0.0)
    # ln Λ = 32·h(5/8) − 20·h(1) − 12·h(0), with the entropy h of a Bernoulli variable.
    entropy = -(5 / 8) * math.log(5 / 8) - (3 / 8) * math.log(3 / 8)
    assert fall.standard_errors == pytest.approx(math.sqrt(2 * 32 * entropy))
    assert find_fall([1.0] * 10 + [0.0] * 10) is None
    rising = find_fall([0.0] * 20 + [1.0] * 20)
    assert rising is not None
    assert rising.standard_errors <= 0


def test_switched_off():
    assert watch([1.0] * 100 + [0.0] * 100, DriftMonitor(DriftSettings(enabled=False))) == []
