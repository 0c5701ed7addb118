"""The migrations make exactly the tables that the code declares, on both databases, and can be undone."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from sqlalchemy import Engine

import feedback.tables
import online_rl.tables
import serving.tables
from feedback.database import open_database
from online_rl.service import database
from tests.postgres import require_postgres

TABLES = {
    table.name
    for metadata in (feedback.tables.metadata, online_rl.tables.metadata, serving.tables.metadata)
    for table in metadata.sorted_tables
}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path / 'test.db'}")
        yield engine
        engine.dispose()
        return
    server = require_postgres()
    try:
        server.start()
        engine = open_database(server.create_database(f"t_{uuid.uuid4().hex}"))
        yield engine
        engine.dispose()
    finally:
        server.close()


def test_upgrade_makes_what_the_code_declares(engine: Engine) -> None:
    database.upgrade(engine)
    assert database.current(engine) == database.head()
    assert set(sa.inspect(engine).get_table_names()) == TABLES | {"alembic_version"}
    # Raises where autogenerate would add, change or remove anything.
    command.check(database.alembic_config(engine))


def test_upgrade_again_changes_nothing(engine: Engine) -> None:
    database.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(online_rl.tables.controls).values(name="x", value=True, changed_at=1.0))
    database.upgrade(engine)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(online_rl.tables.controls.c.name)) == "x"


def test_downgrade_removes_everything(engine: Engine) -> None:
    database.upgrade(engine)
    database.downgrade(engine, "base")
    assert set(sa.inspect(engine).get_table_names()) <= {"alembic_version"}
    database.upgrade(engine)
    assert database.current(engine) == database.head()


def test_an_old_database_with_data_is_taken_to_the_newest_revision_and_back(engine: Engine) -> None:
    database.upgrade(engine, "0004")
    waiting = {"topic": "trajectories.v1", "key": "t1", "created_at": 1.0, "state": "waiting"}
    letter = {
        "dead_letter_id": "dl_1", "topic": "generations.v1", "partition": 0, "offset": 3, "value": b"x", "reason": "r",
        "created_at": 1.0,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(feedback.tables.outbox).values(waiting))
        connection.execute(sa.insert(feedback.tables.dead_letters).values(letter))
    database.upgrade(engine)
    command.check(database.alembic_config(engine))
    with engine.begin() as connection:
        assert connection.execute(sa.select(feedback.tables.dead_letters.c.erased_at)).scalar_one() is None
        long = {"topic": "generations.v1", "key": "k" * 290, "created_at": 2.0, "state": "waiting"}
        connection.execute(sa.insert(feedback.tables.outbox).values(long))
    database.downgrade(engine, "0004")
    with engine.connect() as connection:
        assert list(connection.scalars(sa.text("SELECT key FROM outbox"))) == ["t1"]
        assert list(connection.scalars(sa.text("SELECT dead_letter_id FROM dead_letters"))) == ["dl_1"]
    database.upgrade(engine)
    command.check(database.alembic_config(engine))


def test_a_newer_database_is_refused(engine: Engine) -> None:
    database.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(database.SchemaTooNew, match="9999"):
        database.upgrade(engine)
