"""Alive, ready, metrics, and what happens while the database or the policy is down."""

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine

from feedback.database import open_database
from tests.ops.conftest import client_of


def test_alive(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "alive"}


def test_ready_generates_a_token(client: TestClient, policy_requests: list[httpx.Request]) -> None:
    assert client.get("/ready").json() == {"status": "ready", "version": 5}
    assert policy_requests[-1].url.path == "/v1/ready"


@pytest.fixture
def policy_down() -> httpx.AsyncClient:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    return httpx.AsyncClient(transport=httpx.MockTransport(refuse), base_url="http://policy")


def test_alive_but_not_ready_while_the_policy_is_down(database: Engine, policy_down: httpx.AsyncClient) -> None:
    with client_of(database, policy_down) as client:
        assert client.get("/health").status_code == 200
        ready = client.get("/ready")
        assert ready.status_code == 503
        assert "does not answer" in ready.json()["reason"]
        assert client.post("/tokenize", json={}).status_code == 503
        assert client.get("/admin/status").status_code == 200
        assert "online_rl_policy_up 0.0" in client.get("/metrics").text


def test_both_expositions_in_one(client: TestClient) -> None:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert families["vllm:requests"].samples[0].value == 3
    assert families["online_rl_trajectories_released"].samples[0].value == 240


def test_a_database_that_is_down_is_a_503_with_the_remedy(http: httpx.AsyncClient) -> None:
    engine = open_database("postgresql://nobody@127.0.0.1:9/none")
    with client_of(engine, http) as client:
        assert client.get("/health").status_code == 200
        response = client.get("/admin/status")
        assert response.status_code == 503
        assert "database.url" in response.json()["error"]["message"]


def test_the_page_may_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/dashboard/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_the_root_leads_to_the_dashboard(client: TestClient) -> None:
    assert client.get("/", follow_redirects=False).headers["location"] == "/dashboard/"
