"""Which updates are in a version's weights, checked against walking from update to update."""

from hypothesis import given
from hypothesis import strategies as st

from online_rl.ancestry import find_ancestry, holds, subtract


def walk(update: int, went_back: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while update >= 1:
        found.add(update)
        update = went_back.get(update, update - 1)
    return found


def listed(spans: list[tuple[int, int]]) -> list[int]:
    return [update for first, last in spans for update in range(first, last + 1)]


histories = st.dictionaries(st.integers(1, 30), st.integers(0, 30)).map(
    lambda pairs: {made: back for made, back in pairs.items() if back < made}
)


def test_without_a_roll_back_every_update_counts() -> None:
    assert find_ancestry(7, {}) == [(1, 7)]
    assert find_ancestry(0, {}) == []


def test_what_the_guard_threw_away_is_in_no_later_weights() -> None:
    """Update 6 went back to the weights of update 3."""
    assert find_ancestry(8, {6: 3}) == [(6, 8), (1, 3)]
    assert find_ancestry(5, {6: 3}) == [(1, 5)]
    assert find_ancestry(8, {6: 3, 2: 0}) == [(6, 8), (2, 3)]


@given(st.integers(0, 30), histories)
def test_the_spans_are_the_walk_back(update: int, went_back: dict[int, int]) -> None:
    spans = find_ancestry(update, went_back)
    assert set(listed(spans)) == walk(update, went_back)
    assert len(listed(spans)) == len(set(listed(spans)))
    assert all(holds(spans, one) == (one in walk(update, went_back)) for one in range(32))


@given(st.integers(0, 30), st.integers(0, 30), histories)
def test_what_is_new_since_another_version(update: int, other: int, went_back: dict[int, int]) -> None:
    new = subtract(find_ancestry(update, went_back), find_ancestry(other, went_back))
    assert sorted(listed(new)) == sorted(walk(update, went_back) - walk(other, went_back))
