"""The operations application answers as its OpenAPI document says, over a database with a past."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from schemathesis import Case
from sqlalchemy import Engine

from online_rl.config import Settings
from online_rl.dashboard.http_app import create_app
from tests.openapi import REFUSED, open_schema, require_documented, try_all, try_each

DOCUMENT = "/admin/openapi.json"
OPEN = {"GET /health", "GET /ready"}
"""What needs no key."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "signing.key").write_bytes(bytes(range(32)))
    return Settings(data_dir=tmp_path)


@pytest.fixture
def app(database: Engine, http: httpx.AsyncClient, settings: Settings) -> FastAPI:
    return create_app(database, settings, http=http)


def test_operations_are_answered_as_documented(app: FastAPI) -> None:
    answered = try_all(open_schema(app, DOCUMENT), lambda case: require_documented(case, REFUSED), examples=8)
    assert len(answered) == 24
    assert {200, 422} <= answered["POST /admin/rollback"].keys()
    assert set(answered["GET /admin/events"]) == {200}


def test_operations_on_a_version_that_is_there_are_answered_as_documented(app: FastAPI) -> None:
    def check(case: Case) -> int:
        if "version" in case.path_parameters:
            case.path_parameters = {"version": 12}
        return require_documented(case)

    answered = try_all(open_schema(app, DOCUMENT).include(path_regex="{version}"), check, examples=5)
    assert {name: 200 in statuses for name, statuses in answered.items()} == {
        "GET /admin/versions/{version}/lineage": True,
        "POST /admin/versions/{version}/promote": True,
    }


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"authorization": "Bearer key"}, 403)])
def test_what_needs_a_key_is_refused_as_documented(
    app: FastAPI, database: Engine, http: httpx.AsyncClient, settings: Settings, headers: dict[str, str], status: int
) -> None:
    schema = open_schema(app, DOCUMENT)
    schema.app = create_app(database, settings.model_copy(update={"api_keys": {"key": ["feedback"]}}), http=http)
    answered = try_each(schema, lambda case: require_documented(case, headers=headers))
    assert {name: found for name, found in answered.items() if name not in OPEN} == dict.fromkeys(
        answered.keys() - OPEN, status
    )


def test_a_body_that_is_not_even_text_is_refused_with_the_field(app: FastAPI, http: httpx.AsyncClient) -> None:
    from fastapi.testclient import TestClient

    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    for raw in (b"\xff", b"[" * 100_000, b"{"):
        answered = client.post("/admin/freeze", content=raw, headers={"content-type": "application/json"})
        assert (answered.status_code, answered.json()["error"]["code"]) == (422, "invalid_value"), answered.text
