"""The status is read every second while a page is open: it must not read what grows with the service's age."""

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine

from online_rl.dashboard.snapshot import read_snapshot

GROWING = ("generations", "feedback", "trajectories", "trainings", "drops", "dead_letters", "updates")


def test_what_grows_is_read_from_indexes(database: Engine) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    sa.event.listen(database, "before_cursor_execute", note)
    read_snapshot(database, 0.0, time.time())
    sa.event.remove(database, "before_cursor_execute", note)
    selects = [(statement, parameters) for statement, parameters in asked if statement.startswith("SELECT")]
    assert len(selects) > 10
    with database.connect() as connection:
        plans = [
            row[3]
            for statement, parameters in selects
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    steps = [step.split() for step in plans if step.split()[0] in ("SCAN", "SEARCH") and step.split()[1] in GROWING]
    assert {step[1] for step in steps} == set(GROWING)
    for kind, table, *how in steps:
        # A scan along an index, or along the primary key of updates, ends at the limit; any other reads every row.
        assert "INDEX" in how or (kind == "SCAN" and table == "updates"), (kind, table, *how)
        # The rows of generations hold what was sampled; reading them to count them is reading all of it.
        assert table != "generations" or "COVERING" in how, (kind, table, *how)
