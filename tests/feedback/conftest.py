"""Databases, both kinds, and what stands around them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

import online_rl.tables
from feedback import tables
from feedback.database import open_database
from tests.postgres import PostgresServer, require_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = require_postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    # One database emptied for each test: a new one each time is 900 files to make and to remove.
    url = request.getfixturevalue("postgres").url()
    engine = open_database(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_database(database_url)
    tables.metadata.create_all(engine)
    online_rl.tables.metadata.create_all(engine)
    yield engine
    engine.dispose()
