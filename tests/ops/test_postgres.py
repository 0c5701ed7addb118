"""PostgreSQL gives the same answers as SQLite for the same past."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from feedback.database import open_database
from tests.ops.conftest import client_of
from tests.ops.seed import create_tables, seed
from tests.postgres import require_postgres

pytestmark = pytest.mark.postgres

READS = (
    "/admin/rewards?limit=500",
    "/admin/rewards?limit=40",
    "/admin/updates?since=3&limit=5",
    "/admin/updates",
    "/admin/drift",
    "/admin/dead-letters",
    "/admin/versions",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """A SQLite and a PostgreSQL database with one past."""
    server = require_postgres()
    folder: Path = tmp_path_factory.mktemp("ops")
    try:
        server.start()
        engines = (open_database(f"sqlite:///{folder / 'ops.db'}"), open_database(server.create_database("ops")))
        now = time.time()
        for engine in engines:
            create_tables(engine)
            seed(engine, now, folder / "versions", per_taste=80)
        yield engines
        for engine in engines:
            engine.dispose()
    finally:
        server.close()


@pytest.mark.parametrize("path", READS)
def test_every_read_is_the_same(both: tuple[Engine, Engine], http: httpx.AsyncClient, path: str) -> None:
    answers = []
    for engine in both:
        with client_of(engine, http) as client:
            response = client.get(path)
            assert response.status_code == 200, response.text
            answers.append(response.json())
    assert _rounded(answers[0]) == _rounded(answers[1])


def test_the_status_is_the_same(both: tuple[Engine, Engine], http: httpx.AsyncClient) -> None:
    answers = []
    for engine in both:
        with client_of(engine, http) as client:
            answers.append(client.get("/admin/status").json() | {"seconds": 0})
    assert _rounded(answers[0]) == _rounded(answers[1])


def test_changes_work(both: tuple[Engine, Engine], http: httpx.AsyncClient) -> None:
    for engine in both:
        with client_of(engine, http) as client:
            assert client.post("/admin/rollback", json={"reason": "worse"}).json()["version"] == 14
            assert client.post("/admin/versions/15/promote", json={"reason": "better"}).status_code == 200
            assert client.post("/admin/freeze", json={"reason": "audit"}).json() == {"learning_frozen": True}
            assert client.post("/admin/resume", json={"reason": "done"}).status_code == 200


def _rounded(value: object) -> object:
    """Sums of floats differ in their last digits with the order of adding."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value
