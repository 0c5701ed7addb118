"""Rates and latencies of the last minutes."""

import time

import pytest
from sqlalchemy import Engine

from feedback.database import read_only
from online_rl.dashboard.pace import NEWEST, Pace, per_minute, read_pace


def test_the_pace_of_the_past(database: Engine) -> None:
    with read_only(database).connect() as connection:
        pace = read_pace(connection, time.time())
    # One answer every 2.4 s; the newest was released some seconds ago.
    assert pace.answers_per_minute == pytest.approx(24, abs=2)
    assert pace.feedback_per_minute == pytest.approx(24, abs=2)
    assert pace.latency_p50_s is not None
    assert pace.latency_p95_s is not None
    assert 0.4 <= pace.latency_p50_s < pace.latency_p95_s <= 2.801
    assert pace.rated_after_p50_s == pytest.approx(2.0)


def test_a_service_that_nobody_asks_has_no_latency(database: Engine, empty_database: Engine) -> None:
    with read_only(database).connect() as connection:
        assert read_pace(connection, time.time() + 3600) == Pace()


def test_more_than_is_looked_at_is_not_taken_for_all() -> None:
    fast = [1000.0 - 0.1 * number for number in range(NEWEST)]
    assert per_minute(fast, 1000.0) == pytest.approx(600)
    assert per_minute(fast[:10], 1000.0) == pytest.approx(2)
    assert per_minute([], 1000.0) == 0
