"""Advantages by hand, and the fast version against the equation written out."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_rl.advantages import compute_advantages, compute_returns, place_rewards


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
