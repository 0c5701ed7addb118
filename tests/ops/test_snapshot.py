"""The status is read every second while a page is open: it must not read what grows with the service's age."""

import time

from sqlalchemy import Engine

from online_rl.dashboard.snapshot import read_snapshot
from tests.plans import explain

GROWING = {"generations", "feedback", "trajectories", "trainings", "drops", "dead_letters", "updates"}


def test_what_grows_is_read_from_indexes(database: Engine) -> None:
    steps = explain(database, lambda: read_snapshot(database, 0.0, time.time()))
    assert {step.table for step in steps} >= GROWING
    for step in steps:
        if step.table in GROWING:
            # A scan along an index, or along the primary key of updates, ends at the limit; any other reads every row.
            assert "INDEX" in step.how or (step.kind, step.table) == ("SCAN", "updates"), step
        if step.table == "generations":
            # Its rows hold what was sampled; reading them to count them is reading all of it.
            assert "COVERING" in step.how, step
