"""Advantages against baselines, by hand; what is remembered comes back from JSON to the bit."""

import json
import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_rl.baselines import make_baseline
from online_rl.baselines.beta_tracker import BetaTracker
from online_rl.baselines.group import GroupBaseline
from online_rl.baselines.prompt_window import PromptWindowBaseline
from online_rl.baselines.prompts import prompt_key
from online_rl.baselines.running import EmaBaseline, WindowBaseline
from online_rl.groups import count_short_groups, find_groups
from online_rl.settings import LearnerSettings
from tests.learner.tiny import make_trajectory

STATEFUL = ["running_mean", "prompt_running_mean", "ema", "single_stream"]


def rated(*rewards, prompts=None, groups=None):
    """One trajectory for each reward; `prompts` are numbers, `groups` ids or None."""
    return [
        make_trajectory(
            number,
            reward=float(reward),
            token_ids=(1, prompts[number] if prompts else 2, 9),
            action_mask=(0, 0, 1),
            behavior_logprobs=None,
            spans=None,
            group_id=groups[number] if groups else None,
        )
        for number, reward in enumerate(rewards)
    ]


def test_group_mean_by_hand():
    got = GroupBaseline(scaled=False).advantages(rated(1, 0, 4, 2, groups=["a", "b", "a", "b"]))
    assert got == [-1.5, -1.0, 1.5, 1.0]


def test_scaled_by_hand():
    # Rewards 0, 0, 3: mean 1, sample variance (1 + 1 + 4)/2 = 3.
    got = GroupBaseline(scaled=True).advantages(rated(0, 0, 3))
    scale = math.sqrt(3) + 1e-4
    assert got == pytest.approx([-1 / scale, -1 / scale, 2 / scale])


@pytest.mark.parametrize("scaled", [False, True])
def test_equal_rewards_teach_exactly_nothing(scaled):
    assert GroupBaseline(scaled=scaled).advantages(rated(*[0.1] * 3)) == [0.0] * 3
    assert BetaTracker(0.9, 10).advantages(rated(*[0.1] * 3)) == [0.0] * 3


def test_where_there_is_no_group_the_batch_is_the_group():
    # The two without a group and the one alone in its group are one group; "a" is another.
    got = GroupBaseline(scaled=False).advantages(rated(1, 3, 5, 0, 1, groups=[None, None, "alone", "a", "a"]))
    assert got == [-2.0, 0.0, 2.0, -0.5, 0.5]


def test_the_same_group_id_of_two_keys_is_two_groups():
    theirs = [t.model_copy(update={"api_key_id": "theirs"}) for t in rated(1, 0, groups=["a", "a"])]
    assert find_groups([*rated(1, 0, groups=["a", "a"]), *theirs]) == [[0, 1], [2, 3]]


def test_short_groups_are_counted():
    whole = [t.model_copy(update={"group_size": 2}) for t in rated(1, 0, groups=["a", "a"])]
    short = [t.model_copy(update={"group_size": 2}) for t in rated(1, groups=["b"])]
    assert count_short_groups([*whole, *short, *rated(1)]) == (2, 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 9), st.sampled_from([None, "a", "b"])), min_size=1, max_size=9))
def test_group_advantages_sum_to_0(pairs):
    batch = rated(*(r for r, _ in pairs), groups=[g for _, g in pairs])
    assert sum(GroupBaseline(scaled=False).advantages(batch)) == pytest.approx(0.0, abs=1e-9)


def test_the_window_compares_with_the_batches_before():
    window = WindowBaseline(3)
    assert window.advantages(rated(1, 0)) == [0.5, -0.5]  # no past: the batch
    assert window.advantages(rated(1, 1, 0)) == [0.5, 0.5, -0.5]
    assert window.advantages(rated(0)) == pytest.approx([-2 / 3])  # the last three: 1, 1, 0


def test_the_moving_average_by_hand():
    ema = EmaBaseline(0.5)
    assert ema.advantages(rated(1, 0)) == [0.5, -0.5]
    # 0.5 → 0.75 → 0.375
    assert ema.advantages(rated(1)) == [0.625]


def test_each_prompt_has_its_own_window():
    window = PromptWindowBaseline(2, max_prompts=9)
    assert window.advantages(rated(1, 0, prompts=[7, 8])) == [0.5, -0.5]  # both new: the batch
    assert window.advantages(rated(0, 1, prompts=[7, 8])) == [-1.0, 1.0]
    # 7 had 1, 0; 8 had 0, 1; 9 is new, and the batch's mean is 1.
    assert window.advantages(rated(1, 1, 1, prompts=[7, 8, 9])) == [0.5, 0.5, 0.0]
    assert window.advantages(rated(0, prompts=[7])) == [-0.5]  # the last two: 0, 1


def test_the_beta_tracker_by_hand():
    tracker = BetaTracker(0.5, max_prompts=9)
    # Both prompts are new: v = 1/2, surprises ±1/2 with standard deviation 1/2.
    assert tracker.advantages(rated(1, 0, prompts=[7, 8])) == pytest.approx([1, -1], abs=1e-3)
    # Beta(1, 1) → α = 0.5 + r, β = 0.5 + 1 − r.
    assert dict(tracker.state()["beliefs"]) == {
        prompt_key(rated(1, prompts=[7])[0]): [1.5, 0.5],
        prompt_key(rated(1, prompts=[8])[0]): [0.5, 1.5],
    }
    # v = 3/4 and 1/4; rewards 1 and 1 surprise by 1/4 and 3/4, which is −1 and 1 when brought to mean 0 and std 1.
    assert tracker.advantages(rated(1, 1, prompts=[7, 8])) == pytest.approx([-1, 1], abs=1e-3)


@pytest.mark.parametrize("name", STATEFUL)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_is_remembered_comes_back_to_the_bit(name, data):
    rewards = st.lists(st.tuples(st.floats(-2, 2), st.integers(2, 6)), min_size=1, max_size=6)
    batches = [rated(*(r for r, _ in b), prompts=[p for _, p in b]) for b in data.draw(st.lists(rewards, max_size=6))]
    learner = LearnerSettings.model_validate({"objective": name, "max_prompts": 3, "baseline_window": 4})
    through, resumed = make_baseline(learner), make_baseline(learner)
    assert through is not None
    assert resumed is not None
    for batch in batches:
        through.advantages(batch)
    resumed.load(json.loads(json.dumps(through.state())))
    for batch in [*batches, rated(1, 0)]:
        assert through.advantages(batch) == resumed.advantages(batch)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_of_another_kind_is_refused(name):
    baseline = make_baseline(LearnerSettings.model_validate({"objective": name}))
    assert baseline is not None
    with pytest.raises(KeyError):
        baseline.load({"other": 1})
    with pytest.raises(TypeError):
        GroupBaseline(scaled=True).load(baseline.state())


@pytest.mark.parametrize("name", ["prompt_running_mean", "single_stream"])
def test_only_the_prompts_seen_last_are_remembered(name):
    baseline = make_baseline(LearnerSettings.model_validate({"objective": name, "max_prompts": 2}))
    assert baseline is not None
    for prompt in (7, 8, 7, 9):
        baseline.advantages(rated(1, prompts=[prompt]))
    (remembered,) = baseline.state().values()
    assert [key for key, _ in remembered] == [prompt_key(rated(1, prompts=[p])[0]) for p in (7, 9)]


def test_a_shorter_window_takes_the_newest_of_a_longer_one():
    long, short = WindowBaseline(4), WindowBaseline(2)
    long.advantages(rated(1, 0, 1, 1))
    short.load(long.state())
    assert short.advantages(rated(0)) == [-fmean([1, 1])]


def test_the_prompt_is_what_comes_before_the_first_sampled_token():
    one = make_trajectory(1, token_ids=(1, 2, 3, 4, 5), action_mask=(0, 0, 1, 0, 1), behavior_logprobs=None, spans=None)
    same = make_trajectory(2, token_ids=(1, 2, 9), action_mask=(0, 0, 1), behavior_logprobs=None, spans=None)
    other = make_trajectory(3, token_ids=(1, 3, 9), action_mask=(0, 0, 1), behavior_logprobs=None, spans=None)
    assert prompt_key(one) == prompt_key(same) != prompt_key(other)
