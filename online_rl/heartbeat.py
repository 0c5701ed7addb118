"""Every part of the service says regularly that it is alive, and what it is doing."""

import os
import time

import sqlalchemy as sa

from online_rl.tables import parts


def beat(engine: sa.Engine, name: str, state: str, detail: str | None = None) -> None:
    """Record that part `name` is alive now in `state` (such as ``starting``, ``running``, ``stopped``).

    `detail` says what it does; None leaves what was said last.

    Raises sqlalchemy.exc.OperationalError when the database does not answer.
    """
    values = {"pid": os.getpid(), "state": state, "heartbeat_at": time.time()}
    if detail is not None:
        values["detail"] = detail
    with engine.begin() as connection:
        changed = connection.execute(sa.update(parts).where(parts.c.name == name).values(values))
        if changed.rowcount == 0:
            connection.execute(sa.insert(parts).values(name=name, **({"detail": ""} | values)))
