"""The admin routes against a database with a past."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from online_rl.dashboard.live_status import StatusFeed
from online_rl.registry import Registry
from online_rl.tables import trainings
from tests.monitoring.exposition import LIMITS
from tests.ops.conftest import client_of
from tests.ops.history import Rated
from tests.ops.seed import add_rated, write_manifest

CHANGES = ("/admin/versions/14/promote", "/admin/rollback", "/admin/freeze", "/admin/resume")


def get(client: TestClient, path: str) -> Any:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_status_counts_what_happened(client: TestClient) -> None:
    status = get(client, "/admin/status")
    assert status["live_version"] == 15
    assert status["versions_published"] == 15
    assert (status["requests"], status["failed_requests"]) == (1011, 0)
    assert status["parts"]["policy 0"] | {"heartbeat_at": 0} == {
        "state": "serving", "detail": "version 15", "heartbeat_at": 0,
    }  # fmt: skip
    assert status["feedback_accepted"] == status["generations_stored"] == status["trajectories_released"] == 240
    assert status["trajectories_dropped"] == {"stale": 1}
    assert status["trajectories_trained"] == 239
    assert status["backlog"] == 0
    assert status["drift_events"] == 2
    assert status["updates"] == 15
    assert status["kl_to_base"] > 0
    assert status["mismatch_mean"] == pytest.approx(0.031, abs=0.005)
    assert status["learning_frozen"] is False
    assert status["parts"]["learner"]["state"] == "updating"
    assert status["feedback_by_status"] == {"used": 240}


def test_the_backlog_is_what_was_released_and_not_yet_handled(client: TestClient, database: Engine) -> None:
    with database.begin() as connection:
        connection.execute(sa.delete(trainings).where(trainings.c.update == 15))
    assert get(client, "/admin/status")["backlog"] == 16


def test_an_empty_database_has_a_status(empty_database: Engine, http: httpx.AsyncClient) -> None:
    with client_of(empty_database, http) as client:
        status = get(client, "/admin/status")
        assert status["live_version"] is None
        assert status["reward_recent"] is None
        assert status["trajectories_released"] == 0
        assert get(client, "/admin/rewards")["at"] == []
        assert get(client, "/admin/versions")["versions"] == []
        assert client.get("/metrics").status_code == 200


def test_versions_come_with_what_they_earned_and_what_may_be_done(client: TestClient) -> None:
    listed = get(client, "/admin/versions")
    versions = {one["version"]: one for one in listed["versions"]}
    assert listed["live"] == 15
    assert listed["can_roll_back"] is True
    assert versions[14]["rewards"] == 16
    assert 0 <= versions[14]["reward_mean"] <= 1
    assert versions[14]["can_promote"] is True
    assert versions[15]["can_promote"] is False
    became_live = [one["live_at"] for one in listed["versions"]]
    assert became_live == sorted(became_live)


def test_promoting_makes_a_former_version_live(client: TestClient) -> None:
    response = client.post("/admin/versions/12/promote", json={"reason": "v15 is rude"})
    assert response.status_code == 200, response.text
    listed = get(client, "/admin/versions")
    assert listed["live"] == 12
    versions = {one["version"]: one for one in listed["versions"]}
    assert versions[12]["reason"] == "v15 is rude"
    assert versions[15]["state"] == "retired"
    assert versions[12]["live_at"] > versions[15]["live_at"]


def test_a_candidate_is_never_promoted_past_its_proof(client: TestClient, database: Engine) -> None:
    Registry(database).add_candidate(16, 15, "versions/v000016", {})
    response = client.post("/admin/versions/16/promote", json={"reason": "hurry"})
    assert response.status_code == 409
    assert "candidate" in response.json()["error"]["message"]
    assert get(client, "/admin/versions")["live"] == 15


@pytest.mark.parametrize(("path", "body"), [("/admin/versions/12/promote", {}), ("/admin/rollback", {"to": 12})])
def test_a_version_that_no_replica_could_load_is_refused_at_once(
    client: TestClient, database: Engine, path: str, body: dict[str, int]
) -> None:
    write_manifest(Path(Registry(database).get(12).artifact), 12, 11, **{"adapter/adapter_model.safetensors": "0" * 64})
    response = client.post(path, json={"reason": "v15 is rude", **body})
    assert response.status_code == 409
    error = response.json()["error"]
    assert error["param"] == "version"
    assert "adapter/adapter_model.safetensors of version 12 is gone or damaged" in error["message"]
    assert get(client, "/admin/versions")["live"] == 15


def test_rolling_back_twice_goes_two_versions_back(client: TestClient) -> None:
    for expected in (14, 13):
        assert client.post("/admin/rollback", json={"reason": "worse"}).json()["version"] == expected
    states = {one["version"]: one["state"] for one in get(client, "/admin/versions")["versions"]}
    assert (states[15], states[14], states[13]) == ("rolled_back", "rolled_back", "live")


def test_rolling_back_to_a_named_version(client: TestClient) -> None:
    assert client.post("/admin/rollback", json={"reason": "worse", "to": 3}).json()["version"] == 3


@pytest.mark.parametrize("to", [True, "3", 3.5, [3]])
def test_what_is_no_version_is_never_rolled_back_to(client: TestClient, to: object) -> None:
    response = client.post("/admin/rollback", json={"reason": "worse", "to": to})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "to"
    assert get(client, "/admin/versions")["live"] == 15


def test_there_must_be_something_to_roll_back_to(empty_database: Engine, http: httpx.AsyncClient) -> None:
    Registry(empty_database).ensure_base("models/base")
    with client_of(empty_database, http) as client:
        assert client.post("/admin/rollback", json={"reason": "worse"}).status_code == 409


def test_an_unknown_version_cannot_be_promoted(client: TestClient) -> None:
    response = client.post("/admin/versions/99/promote", json={"reason": "typo"})
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "version"


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_needs_a_reason(client: TestClient, path: str) -> None:
    for body in ({}, {"reason": ""}):
        response = client.post(path, json=body)
        assert response.status_code == 422
        assert response.json()["error"]["param"] == "reason"


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("reason", [r"a\u0000b", r"half \ud800"])
def test_a_reason_that_no_database_keeps_is_refused(client: TestClient, path: str, reason: str) -> None:
    response = client.post(path, content=f'{{"reason": "{reason}"}}', headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "reason"


def test_a_number_that_no_column_holds_is_refused(client: TestClient) -> None:
    huge = 2**70
    for response in (
        client.post(f"/admin/versions/{huge}/promote", json={"reason": "typo"}),
        client.post("/admin/rollback", json={"reason": "typo", "to": huge}),
        client.get(f"/admin/updates?since={huge}"),
    ):
        assert response.status_code == 422


@pytest.mark.parametrize("path", CHANGES)
def test_a_page_of_another_site_changes_nothing(client: TestClient, database: Engine, path: str) -> None:
    response = client.post(path, json={"reason": "x"}, headers={"sec-fetch-site": "cross-site"})
    assert response.status_code == 403
    assert not Registry(database).frozen()


def test_freezing_and_resuming(client: TestClient, database: Engine) -> None:
    assert client.post("/admin/freeze", json={"reason": "audit"}).json() == {"learning_frozen": True}
    assert Registry(database).frozen()
    assert client.post("/admin/resume", json={"reason": "done"}).json() == {"learning_frozen": False}
    assert not Registry(database).frozen()


def test_drift_events_newest_first(client: TestClient) -> None:
    events = get(client, "/admin/drift")["events"]
    assert [event["detected_at"] for event in events] == sorted((e["detected_at"] for e in events), reverse=True)
    assert len(get(client, "/admin/drift?limit=1")["events"]) == 1


def test_dead_letters_give_the_reason_and_never_the_content(client: TestClient) -> None:
    response = client.get("/admin/dead-letters")
    assert response.json()["total"] == 1
    assert "never padded" in response.json()["dead_letters"][0]["reason"]
    assert "private" not in response.text


def test_updates_since(client: TestClient) -> None:
    updates = get(client, "/admin/updates?limit=4")["updates"]
    assert [one["update"] for one in updates] == [12, 13, 14, 15]
    assert [one["update"] for one in get(client, "/admin/updates?since=13")["updates"]] == [14, 15]


def test_the_stream_tells_of_a_new_reward(database: Engine) -> None:
    feed = StatusFeed(database, LIMITS, started_at=time.time(), max_age_s=0.0)
    before = feed.read()
    with database.begin() as connection:
        add_rated(connection, Rated(9999, "concise", 15, 1.0, time.time()))
    after = feed.read()
    assert after.revisions["rewards"] == before.revisions["rewards"] + 1
    assert after.revisions["updates"] == before.revisions["updates"]


async def test_a_follower_hears_each_change_once(database: Engine) -> None:
    feed = StatusFeed(database, LIMITS, started_at=time.time() + 3600, max_age_s=0.01)
    followed = feed.follow()
    first = await anext(followed)
    with database.begin() as connection:
        add_rated(connection, Rated(9999, "concise", 15, 1.0, time.time()))
    second = await anext(followed)
    await followed.aclose()
    assert second.status.trajectories_released == first.status.trajectories_released + 1


def test_the_snapshot_is_json_for_the_stream(database: Engine) -> None:
    snapshot = json.loads(StatusFeed(database, LIMITS, started_at=0.0).read().model_dump_json())
    assert set(snapshot) == {"status", "revisions", "alarms"}
