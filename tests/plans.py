"""How SQLite goes about the statements that some work makes: what it searches by an index, and what it reads whole."""

from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Engine


class Step(NamedTuple):
    """`how` names the index, as in ``USING COVERING INDEX name (column=?)``."""

    kind: str
    table: str
    how: str


def explain(engine: Engine, work: Callable[[], Any]) -> list[Step]:
    """The tables that the statements of `work` look through, SCAN or SEARCH."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        asked.append((statement, parameters[0] if many else parameters))

    sa.event.listen(engine, "before_cursor_execute", note)
    work()
    sa.event.remove(engine, "before_cursor_execute", note)
    tables = set(sa.inspect(engine).get_table_names())
    steps: list[Step] = []
    with engine.connect() as connection:
        for statement, parameters in asked:
            if not statement.startswith(("SELECT", "UPDATE", "DELETE")):
                continue
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters):
                kind, _, rest = row[3].partition(" ")
                table, _, how = rest.partition(" ")
                if kind in ("SCAN", "SEARCH") and table in tables:
                    steps.append(Step(kind, table, how))
    return steps
