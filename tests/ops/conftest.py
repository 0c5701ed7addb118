"""The operations application over a database with a past, and without Ray or the engine."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from feedback.database import open_database
from online_rl.config import Settings
from online_rl.dashboard.http_app import create_app
from tests.ops.seed import create_tables, seed


@pytest.fixture
def empty_database(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'ops.db'}")
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def database(empty_database: Engine, tmp_path: Path) -> Engine:
    seed(empty_database, time.time(), tmp_path / "versions", per_taste=80)
    return empty_database


@pytest.fixture
def policy_requests() -> list[httpx.Request]:
    return []


@pytest.fixture
def http(policy_requests: list[httpx.Request]) -> httpx.AsyncClient:
    """The policy application: ready, with one metric, and an echo for the rest."""

    def answer(request: httpx.Request) -> httpx.Response:
        policy_requests.append(request)
        if request.url.path == "/v1/metrics":
            return httpx.Response(200, text="# TYPE vllm:requests gauge\nvllm:requests 3\n")
        return httpx.Response(200, json={"path": request.url.path}, headers={"x-policy-version": "5"})

    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://policy")


def client_of(engine: Engine, http: httpx.AsyncClient, **settings: Any) -> TestClient:
    app = create_app(engine, Settings(**settings), http=http)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.fixture
def client(database: Engine, http: httpx.AsyncClient) -> Iterator[TestClient]:
    with client_of(database, http) as client:
        yield client
