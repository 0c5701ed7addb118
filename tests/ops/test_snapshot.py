"""The status is read every second while a page is open: it must not read what grows with the service's age."""

import time

from sqlalchemy import Engine

from online_rl.dashboard.measured import read_measured
from online_rl.dashboard.snapshot import read_snapshot
from tests.plans import explain

GROWING = {"generations", "feedback", "trajectories", "trainings", "drops", "dead_letters", "updates", "outbox"}


def test_what_grows_is_read_from_indexes(database: Engine) -> None:
    steps = explain(database, lambda: read_snapshot(database, 0.0, time.time()))
    assert {step.table for step in steps} >= GROWING
    for step in steps:
        if step.table in GROWING:
            # A scan along an index, or along the primary key of updates, ends at the limit; any other reads every row.
            # A search knows where to begin.
            assert "INDEX" in step.how or step.kind == "SEARCH" or (step.kind, step.table) == ("SCAN", "updates"), step
        if step.table == "generations" and step.kind == "SCAN":
            # Its rows hold what was sampled; reading them to count them is reading all of it.
            assert "COVERING" in step.how, step


def test_a_scrape_reads_the_newest_rewards_only(database: Engine) -> None:
    measured = read_measured(database)
    assert sum(one.rewards for one in measured.version_rewards) <= 1000
    assert [one.version for one in measured.version_rewards][:2] == [14, 13]
    assert measured.versions_by_state["live"] == 1
    assert "policy/mask_ratio" in measured.update


def test_the_time_from_feedback_to_weights_is_that_of_the_live_version(database: Engine) -> None:
    flow = read_snapshot(database, 0.0, time.time()).status.flow
    # The past has 2.4 s between ratings, 16 of them an update, and a delivery of some seconds.
    assert flow.feedback_to_weights_s is not None
    assert 16 * 2.4 / 2 < flow.feedback_to_weights_s < 16 * 2.4
    assert flow.captured == 1004
