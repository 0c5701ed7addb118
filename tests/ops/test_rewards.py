"""The reward series: exact against a naive calculation, and the same whether read at once or in pieces."""

import math
import statistics
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine

from online_rl.dashboard.rewards import FEWEST, WINDOW, choose_bucket, read_rewards
from tests.ops.history import History
from tests.ops.seed import seed


@pytest.fixture
def history(empty_database: Engine, tmp_path: Path) -> History:
    return seed(empty_database, time.time(), tmp_path / "versions", per_taste=60)


def naive(history: History, bucket: float) -> dict[float, tuple[int, float, float | None]]:
    """Bucket start → (count, mean, average of the last 32 at its end), the obvious way."""
    rated = sorted(history.rated, key=lambda one: one.released_at)
    found: dict[float, tuple[int, float, float | None]] = {}
    for start in {math.floor(one.released_at / bucket) * bucket for one in rated}:
        inside = [i for i, one in enumerate(rated) if start <= one.released_at < start + bucket]
        last = inside[-1]
        window = [one.reward for one in rated[max(0, last - WINDOW + 1) : last + 1]]
        average = statistics.fmean(window) if last + 1 >= FEWEST else None
        found[start] = (len(inside), statistics.fmean(rated[i].reward for i in inside), average)
    return found


@pytest.mark.parametrize("limit", [20, 60, 500])
def test_the_series_equals_the_naive_one(empty_database: Engine, history: History, limit: int) -> None:
    series = read_rewards(empty_database, since=None, limit=limit)
    expected = naive(history, series.bucket_seconds)
    assert series.at == sorted(expected)
    assert len(series.at) <= limit + 1
    for at, count, mean, average in zip(series.at, series.count, series.mean, series.average, strict=True):
        assert count == expected[at][0]
        assert mean == pytest.approx(expected[at][1])
        assert average == (None if expected[at][2] is None else pytest.approx(expected[at][2]))


def test_the_rest_read_later_fits_onto_what_a_page_has(empty_database: Engine, history: History) -> None:
    whole = read_rewards(empty_database, since=None, limit=200)
    join = len(whole.at) // 2
    inside = whole.at[join] + 0.9 * whole.bucket_seconds  # a bucket is given whole, wherever in it one asks from
    rest = read_rewards(empty_database, since=inside, limit=200, bucket=whole.bucket_seconds)
    assert rest.at == whole.at[join:]
    assert rest.count == whole.count[join:]
    assert rest.average == pytest.approx(whole.average[join:])


def test_a_bucket_too_small_for_the_limit_is_lengthened(empty_database: Engine, history: History) -> None:
    series = read_rewards(empty_database, since=None, limit=10, bucket=1.0)
    assert len(series.at) <= 11


@pytest.mark.parametrize(
    ("span", "limit", "bucket"), [(0, 10, 1), (100, 100, 1), (101, 100, 2), (86400 * 400, 100, 4 * 86400)]
)
def test_buckets_are_round(span: float, limit: int, bucket: float) -> None:
    assert choose_bucket(span, limit) == bucket
