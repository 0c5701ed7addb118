"""From a version to what made it, and back: checked against the history that was written, by the routes too."""

import httpx
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy import Engine

import feedback.tables
import online_rl.tables
from feedback.erasure import Eraser
from online_rl.dashboard import lineage
from online_rl.dashboard.lineage import NothingKnown
from online_rl.dashboard.lineage_records import LearnedVersion
from online_rl.ledger import stop_training
from online_rl.registry import Registry, UnknownVersion
from tests.ops.conftest import client_of


def trained_in(engine: Engine, *numbers: int) -> set[str]:
    with engine.connect() as connection:
        query = sa.select(online_rl.tables.trainings.c.trajectory_id)
        return set(connection.scalars(query.where(online_rl.tables.trainings.c.update.in_(numbers))))


def versions_of(found: list[LearnedVersion]) -> list[int]:
    return [one.version for one in found]


def go_back(engine: Engine, update: int, to: int) -> None:
    """As the divergence guard does it: an update that trained on nothing."""
    changed = {"trajectories": 0, "metrics": {"guard/rolled_back_to": float(to)}}
    table = online_rl.tables.updates
    with engine.begin() as connection:
        connection.execute(sa.update(table).where(table.c.update == update).values(changed))
        gone = online_rl.tables.trainings.c.update == update
        connection.execute(sa.delete(online_rl.tables.trainings).where(gone))


def test_a_version_is_what_its_update_added_to_its_parent(database: Engine) -> None:
    found = lineage.read_version(database, 7)
    assert (found.version, found.parent, found.state, found.update) == (7, 6, "retired", 7)
    assert [(one.update, one.trajectories) for one in found.updates] == [(7, 16)]
    assert {one.trajectory_id for one in found.trajectories} == trained_in(database, 7)
    assert found.trajectory_count == len(found.trajectories) == 16
    one = found.trajectories[0]
    assert (one.update, one.dropped, one.erased_at) == (7, None, None)
    assert one.inference_ids == [one.trajectory_id.removeprefix("t-")]
    assert [said.feedback_id for said in one.feedback] == [f"f-{one.inference_ids[0]}"]
    assert one.feedback[0].value == one.reward


def test_and_as_a_whole_all_updates_since_the_base(database: Engine) -> None:
    found = lineage.read_version(database, 7, whole=True)
    assert [one.update for one in found.updates] == [1, 2, 3, 4, 5, 6, 7]
    assert {one.trajectory_id for one in found.trajectories} == trained_in(database, *range(1, 8))
    few = lineage.read_version(database, 7, whole=True, limit=5)
    assert (few.trajectory_count, len(few.trajectories)) == (found.trajectory_count, 5)
    assert {one.update for one in few.trajectories} == {7}


def test_the_base_model_was_made_by_nothing(database: Engine) -> None:
    found = lineage.read_version(database, 0)
    assert (found.update, found.updates, found.trajectories) == (None, [], [])
    with pytest.raises(UnknownVersion):
        lineage.read_version(database, 99)


def test_what_the_guard_threw_away_made_no_later_version(database: Engine) -> None:
    """Update 9 went back to the weights of update 6."""
    go_back(database, 9, 6)
    whole = lineage.read_version(database, 10, whole=True)
    assert [one.update for one in whole.updates] == [1, 2, 3, 4, 5, 6, 9, 10]
    assert [one.update for one in lineage.read_version(database, 9).updates] == [9]
    lost, kept = sorted(trained_in(database, 8))[0], sorted(trained_in(database, 6))[0]
    assert versions_of(lineage.read_trajectory(database, lost).versions) == [8]
    assert versions_of(lineage.read_trajectory(database, kept).versions) == list(range(6, 16))


def test_from_a_trajectory_to_the_versions(database: Engine) -> None:
    name = sorted(trained_in(database, 4))[0]
    found = lineage.read_trajectory(database, name)
    assert [one.trajectory_id for one in found.trajectories] == [name]
    assert versions_of(found.versions) == list(range(4, 16))
    dropped = lineage.read_trajectory(database, "t-inf-000007")
    assert (dropped.trajectories[0].dropped, dropped.versions) == ("stale", [])
    with pytest.raises(NothingKnown):
        lineage.read_trajectory(database, "t-none")


def test_from_an_inference_to_the_versions(database: Engine) -> None:
    found = lineage.read_inference(database, "inf-000000")
    assert [one.trajectory_id for one in found.trajectories] == ["t-inf-000000"]
    assert versions_of(found.versions) == list(range(1, 16))
    with pytest.raises(NothingKnown):
        lineage.read_inference(database, "none")


@pytest.fixture
def ann(database: Engine) -> Engine:
    """She asked two of the first batch, and rated one of the third that nobody is named for."""
    with database.begin() as connection:
        for table, key in ((feedback.tables.generations, "inference_id"), (feedback.tables.trajectories, "episode_id")):
            hers = table.c[key].in_(["inf-000001", "inf-000002"])
            connection.execute(sa.update(table).where(hers).values(user_id="ann"))
        said = feedback.tables.feedback
        connection.execute(sa.update(said).where(said.c.inference_id == "inf-000033").values(user_id="ann"))
    return database


def test_from_a_user_to_what_they_asked_and_said(ann: Engine) -> None:
    found = lineage.read_user(ann, ["ann"])
    assert [one.trajectory_id for one in found.trajectories] == ["t-inf-000001", "t-inf-000002", "t-inf-000033"]
    assert [one.update for one in found.trajectories] == [1, 1, 3]
    assert versions_of(found.versions) == list(range(1, 16))
    made = lineage.read_version(ann, 1)
    assert [(share.user_id, share.trajectories) for share in made.users] == [(None, 13), ("ann", 2)]
    assert [share.trajectories for share in lineage.read_version(ann, 3).users if share.user_id == "ann"] == [1]
    with pytest.raises(NothingKnown):
        lineage.read_user(ann, ["eve"])


def test_what_was_erased_is_still_there_by_its_ids(ann: Engine, tmp_path, http: httpx.AsyncClient) -> None:
    (tmp_path / "signing.key").write_bytes(b"s" * 32)
    with ann.begin() as connection:
        # Events of the seeded past are no real ones.
        import zlib

        changed = {"event": zlib.compress(b'{"token_ids": [1, 2]}')}
        connection.execute(sa.update(feedback.tables.trajectories).values(changed))
    with client_of(ann, http, data_dir=tmp_path) as client:
        before = client.get("/admin/lineage", params={"user": "ann"}).json()
        answered = client.post("/admin/users/erase", json={"user": "ann"})
        assert answered.status_code == 200, answered.text
        report = answered.json()
        assert (report["answers"], report["trajectories"], report["feedback"]) == (2, 2, 3)
        assert report["versions"] == before["versions"]
        assert report["unaffected"] == 0
        after = client.get("/admin/lineage", params={"user": "ann"}).json()
        assert after["versions"] == before["versions"]
        assert [one["user_id"] for one in after["trajectories"]][:2] == [report["user_name"]] * 2
        assert [one["erased_at"] is not None for one in after["trajectories"]] == [True, True, False]
        again = client.post("/admin/users/erase", json={"user": "ann"}).json()
        assert (again["answers"], again["versions"]) == (0, report["versions"])


def test_the_routes(client: TestClient) -> None:
    found = client.get("/admin/versions/7/lineage", params={"limit": 3}).json()
    assert (found["update"], len(found["trajectories"]), found["trajectory_count"]) == (7, 3, 16)
    assert client.get("/admin/versions/99/lineage").status_code == 404
    name = found["trajectories"][0]["trajectory_id"]
    data = client.get("/admin/lineage", params={"trajectory": name}).json()
    assert [one["version"] for one in data["versions"]] == list(range(7, 16))
    inference = "chatcmpl-" + found["trajectories"][0]["inference_ids"][0]
    assert client.get("/admin/lineage", params={"inference": inference}).json() == data
    for query, status in (({}, 422), ({"user": "a", "trajectory": "b"}, 422), ({"trajectory": "t-none"}, 404)):
        assert client.get("/admin/lineage", params=query).status_code == status
    assert client.get("/admin/lineage", params={"trajectory": "a\0"}).status_code == 422


def test_a_page_of_another_site_erases_nobody(ann: Engine, http: httpx.AsyncClient, tmp_path) -> None:
    (tmp_path / "signing.key").write_bytes(b"s" * 32)
    with client_of(ann, http, data_dir=tmp_path) as client:
        headers = {"sec-fetch-site": "cross-site"}
        assert client.post("/admin/users/erase", json={"user": "ann"}, headers=headers).status_code == 403
        for body in ({}, {"user": ""}, {"user": "a", "why": "b"}):
            assert client.post("/admin/users/erase", json=body).status_code == 422
    assert lineage.read_user(ann, ["ann"]).trajectories[0].erased_at is None


def test_without_the_key_nothing_is_erased_and_it_is_said_why(ann: Engine, http: httpx.AsyncClient, tmp_path) -> None:
    with client_of(ann, http, data_dir=tmp_path) as client:
        answered = client.post("/admin/users/erase", json={"user": "ann"})
    assert answered.status_code == 503
    assert "signing_key_file" in answered.json()["error"]["message"]
    assert Eraser(ann, b"s" * 32, stop_training).erase("nobody").answers == 0


def test_a_rejected_version_has_a_lineage_too(database: Engine) -> None:
    Registry(database).add_rejected(16, 15, "v16", {"update": 15.0}, "too far")
    assert lineage.read_version(database, 16).updates == []
