"""Databases, both kinds, and what stands around them."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
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
    return request.getfixturevalue("postgres").create_database(f"t_{uuid.uuid4().hex}")


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_database(database_url)
    tables.metadata.create_all(engine)
    online_rl.tables.metadata.create_all(engine)
    yield engine
    engine.dispose()
