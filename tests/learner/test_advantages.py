"""Advantages by hand, and the fast version against the equation written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_rl.advantages import (
    compute_advantages,
    compute_plain_advantages,
    compute_returns,
    compute_step_advantages,
    place_rewards,
)
from online_rl.batch_advantages import center


def naive_advantages(values, rewards, lengths, gamma, alpha):
    """The recursion, one token after the other, from the end."""
    out, start = [], 0
    for length in lengths:
        decay = gamma * max(0.0, 1 - 1 / (alpha * length))
        advantage, following, reverse = 0.0, 0.0, []
        for t in range(start + length - 1, start - 1, -1):
            delta = rewards[t] + gamma * following - values[t]
            advantage = delta + decay * advantage
            following = values[t]
            reverse.append(advantage)
        out += reverse[::-1]
        start += length
    return torch.tensor(out, dtype=torch.float64)


def test_one_trajectory_by_hand():
    # l = 2, α = 1: λ = 1/2. δ₁ = 1 − 0.5 = 0.5, δ₀ = 0 + 0.5 − 0.25 = 0.25, A₀ = 0.25 + ½·0.5 = 0.5.
    got = compute_advantages(
        torch.tensor([0.25, 0.5]), torch.tensor([0.0, 1.0]), torch.tensor([2]), gamma=1.0, alpha=1.0
    )
    assert got.tolist() == [0.5, 0.5]


def test_one_token_takes_the_whole_surprise():
    got = compute_advantages(torch.tensor([0.25]), torch.tensor([1.0]), torch.tensor([1]), gamma=1.0, alpha=0.5)
    assert got.tolist() == [0.75]


def test_trajectories_do_not_leak_into_each_other():
    got = compute_advantages(
        torch.zeros(4), torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([2, 2]), gamma=1.0, alpha=9.0
    )
    assert got[2:].tolist() == [0.0, 0.0]
    assert got[0] > 0


def test_intermediate_rewards_count_from_where_they_are():
    returns = compute_returns(torch.tensor([0.0, 1.0, 0.0, 2.0]), torch.tensor([4]), gamma=0.5)
    assert returns.tolist() == [0.5 + 0.25, 1 + 0.5, 1.0, 2.0]


def test_rewards_lie_on_the_last_token():
    placed = place_rewards(torch.tensor([1.0, 2.0]), torch.tensor([2, 3]))
    assert placed.tolist() == [0.0, 1.0, 0.0, 0.0, 2.0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from([1.0, 0.9]),
    st.sampled_from([0.4, 1.5, 50.0]),
    st.integers(0, 10_000),
)
def test_fast_equals_naive(lengths, gamma, alpha, seed):
    generator = torch.Generator().manual_seed(seed)
    values, rewards = torch.randn(2, sum(lengths), generator=generator, dtype=torch.float64)
    got = compute_advantages(values, rewards, torch.tensor(lengths), gamma=gamma, alpha=alpha)
    torch.testing.assert_close(got, naive_advantages(values.tolist(), rewards.tolist(), lengths, gamma, alpha))


@st.composite
def masked_trajectories(draw):
    """Action masks of some trajectories, values at every token, and rewards of action tokens."""
    masks = draw(st.lists(st.lists(st.integers(0, 1), max_size=8).map(lambda m: [0, 1, *m]), min_size=1, max_size=4))
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    values, rewards = ([torch.randn(len(m), generator=generator, dtype=torch.float64) for m in masks] for _ in range(2))
    return masks, values, [r * torch.tensor(m) for r, m in zip(rewards, masks, strict=True)]


def recursion(steps, gamma, alpha):
    """GAE over (value, reward) pairs, one after the other from the end."""
    decay = gamma * max(0.0, 1 - 1 / (alpha * len(steps)))
    advantage, following, reverse = 0.0, 0.0, []
    for value, reward in reversed(steps):
        advantage = reward + gamma * following - value + decay * advantage
        following = value
        reverse.append(advantage)
    return reverse[::-1]


def naive_by_mask(kind, mask, values, rewards, gamma, alpha):
    """The advantage of each action token of one trajectory, from its mask, as the definition reads."""
    actions = [t for t, marked in enumerate(mask) if marked]
    if kind == "skip_observation":
        return recursion([(values[t], rewards[t]) for t in actions], gamma, alpha)
    if kind == "plain":
        everything = range(actions[0], actions[-1] + 1)
        found = recursion([(values[t], rewards[t]) for t in everything], gamma, alpha)
        return [found[t - actions[0]] for t in actions]
    steps, step_of = [], []
    for t in actions:
        if not mask[t - 1]:
            steps.append([values[t], 0.0])
        steps[-1][1] += rewards[t]
        step_of.append(len(steps) - 1)
    found = recursion(steps, gamma, alpha)
    return [found[step] for step in step_of]


@settings(max_examples=60, deadline=None)
@given(masked_trajectories(), st.sampled_from([1.0, 0.9]), st.sampled_from([0.4, 1.5, 50.0]))
def test_every_kind_of_gae_equals_its_definition_on_random_masks(made, gamma, alpha):
    masks, values, rewards = made
    lengths = torch.tensor([sum(mask) for mask in masks])
    action_values, action_rewards = (
        torch.cat([x[torch.tensor(mask).bool()] for x, mask in zip(all_x, masks, strict=True)])
        for all_x in (values, rewards)
    )
    stretches = [slice(mask.index(1), len(mask) - mask[::-1].index(1)) for mask in masks]
    decay = {"gamma": gamma, "alpha": alpha}
    got = {
        "skip_observation": compute_advantages(action_values, action_rewards, lengths, **decay),
        "plain": compute_plain_advantages(
            torch.cat([v[s] for v, s in zip(values, stretches, strict=True)]),
            action_rewards,
            torch.tensor([mark for m, s in zip(masks, stretches, strict=True) for mark in m[s]]).bool(),
            torch.tensor([s.stop - s.start for s in stretches]),
            **decay,
        ),
        "step": compute_step_advantages(
            action_values,
            action_rewards,
            torch.tensor([not m[t - 1] for m in masks for t, marked in enumerate(m) if marked]),
            lengths,
            **decay,
        ),
    }
    for kind, found in got.items():
        expected = [
            a
            for m, v, r in zip(masks, values, rewards, strict=True)
            for a in naive_by_mask(kind, m, v.tolist(), r.tolist(), gamma, alpha)
        ]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_two_actions_with_an_observation_between_by_hand():
    # Tokens a o b with values 1, 2, 4 and reward 8 on b; γ = 1.
    values, rewards = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 8.0])
    is_action, lengths = torch.tensor([True, False, True]), torch.tensor([3])
    # λ = 1: what was earned, minus the value.
    plain = compute_plain_advantages(values, rewards, is_action, lengths, gamma=1.0, alpha=1e9)
    assert plain.tolist() == pytest.approx([7.0, 4.0])
    # λ = 0 shows what follows what: V(o) − V(a) where the observation is a step, V(b) − V(a) where it is skipped.
    plain = compute_plain_advantages(values, rewards, is_action, lengths, gamma=1.0, alpha=1e-9)
    skip = compute_advantages(values[is_action], rewards, torch.tensor([2]), gamma=1.0, alpha=1e-9)
    assert plain.tolist() == [1.0, 4.0]
    assert skip.tolist() == [3.0, 4.0]


def test_whole_actions_share_one_advantage():
    # Actions (a b) and (c): values at a and c only, the reward of an action is the sum over its tokens.
    got = compute_step_advantages(
        torch.tensor([1.0, 50.0, 4.0]),
        torch.tensor([0.0, 2.0, 8.0]),
        torch.tensor([True, False, True]),
        torch.tensor([3]),
        gamma=1.0,
        alpha=1e-9,
    )
    assert got.tolist() == [2.0 + 4.0 - 1.0, 5.0, 4.0]


def test_centred_advantages_keep_their_differences_and_lose_their_mean_over_all_tokens():
    (first, second), offset = center([torch.tensor([-1.0, -0.5]), torch.tensor([-0.9])])
    assert offset == pytest.approx(-0.8)
    assert torch.allclose(torch.cat([first, second]).mean(), torch.tensor(0.0), atol=1e-7)
    assert torch.allclose(first, torch.tensor([-0.2, 0.3]))
    assert torch.allclose(second, torch.tensor([-0.1]))
