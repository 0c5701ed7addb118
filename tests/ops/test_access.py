"""Which routes are open, and that none of the others works without its scope once a key is configured."""

from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from online_rl.dashboard.http_app import scope_for
from tests.ops.conftest import client_of

KEYS = {"admin-key": ["admin"], "user-key": ["inference", "feedback"]}


@pytest.fixture
def guarded(database: Engine, http: httpx.AsyncClient) -> Iterator[TestClient]:
    with client_of(database, http, api_keys=KEYS) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_admin_route_needs_the_admin_scope(guarded: TestClient) -> None:
    routes = [route for route in guarded.app.routes if isinstance(route, APIRoute) and route.path.startswith("/admin")]  # type: ignore[attr-defined]
    assert len(routes) >= 11
    for route in routes:
        path = route.path.replace("{version}", "1")
        for method in route.methods:
            assert guarded.request(method, path).status_code == 401, path
            assert guarded.request(method, path, headers=bearer("wrong")).status_code == 401, path
            assert guarded.request(method, path, headers=bearer("user-key")).status_code == 403, path


def test_the_admin_key_opens_them(guarded: TestClient) -> None:
    assert guarded.get("/admin/status", headers=bearer("admin-key")).status_code == 200
    assert guarded.get("/metrics", headers=bearer("admin-key")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/dashboard/", "/dashboard/js/main.js"])
def test_health_and_the_page_itself_are_open(guarded: TestClient, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_metrics_need_the_admin_scope(guarded: TestClient) -> None:
    assert guarded.get("/metrics").status_code == 401
    assert guarded.get("/metrics", headers=bearer("user-key")).status_code == 403


def test_forwards_need_the_inference_scope_and_carry_the_key(
    guarded: TestClient, policy_requests: list[httpx.Request]
) -> None:
    assert guarded.post("/tokenize", json={"prompt": "a"}, headers=bearer("admin-key")).status_code == 403
    assert guarded.post("/tokenize", json={"prompt": "a"}, headers=bearer("user-key")).json() == {
        "path": "/v1/tokenize"
    }
    assert policy_requests[-1].headers["authorization"] == "Bearer user-key"


def test_an_unknown_path_is_not_open_by_accident() -> None:
    assert scope_for("GET", "/dashboards") == "admin"
    assert scope_for("GET", "/healthz") == "admin"
    assert scope_for("GET", "//admin/status") == "admin"


@pytest.mark.parametrize("path", ["/admin/freeze", "/admin/rollback", "/admin/versions/14/promote", "/tokenize"])
def test_without_keys_a_name_rebound_to_this_machine_changes_nothing(client: TestClient, path: str) -> None:
    rebound = {"host": "evil.example:8000", "origin": "http://evil.example:8000", "sec-fetch-site": "same-origin"}
    response = client.post(path, json={"reason": "x"}, headers=rebound)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "foreign_host"
    assert client.get("/admin/status", headers={"host": "evil.example:8000"}).status_code == 403
    assert client.get("/admin/status").status_code == 200
