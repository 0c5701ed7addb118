"""One trajectory, token by token, and the lists that lead to it."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from online_rl.dashboard.episodes import read_trajectories, read_trajectory
from online_rl.dashboard.lineage import NothingKnown
from tests.plans import explain


def test_what_belongs_to_a_token_stands_at_it(database: Engine) -> None:
    found = read_trajectory(database, "t-inf-000100")
    assert len(found.token_ids) == len(found.action_mask) == len(found.logprobs) == len(found.versions) == 82
    assert found.logprobs[:50] == found.versions[:50] == [None] * 50
    assert all(value is not None and value <= 0 for value in found.logprobs[50:])
    assert set(found.versions[50:]) == {found.oldest_version}
    assert [said.tags for said in found.feedback] == [{"taste": "asks_a_question"}]
    assert found.update == 7


def test_the_lists(database: Engine) -> None:
    newest = read_trajectories(database, before=None, limit=5)
    assert [one.trajectory_id for one in newest] == [f"t-inf-000{number}" for number in (239, 238, 237, 236, 235)]
    before = read_trajectories(database, before=newest[-1].released_at, limit=1)
    assert before[0].trajectory_id == "t-inf-000234"
    worst = read_trajectories(database, before=None, limit=5, worst=True)
    assert [one.reward for one in worst] == [0.0] * 5


def test_neither_reads_what_it_does_not_show(database: Engine) -> None:
    for work in (
        lambda: read_trajectories(database, before=None, limit=50),
        lambda: read_trajectory(database, "t-inf-000100"),
    ):
        steps = [step for step in explain(database, work) if step.table in ("trainings", "drops", "feedback")]
        assert steps
        assert all(step.kind == "SEARCH" for step in steps), steps


def test_an_id_that_is_not_on_record(database: Engine, client: TestClient) -> None:
    with pytest.raises(NothingKnown):
        read_trajectory(database, "t-none")
    assert client.get("/admin/trajectories/t-none").status_code == 404
    assert client.get("/admin/trajectories/t-inf-000100").json()["update"] == 7
    assert client.get("/admin/cohorts").json()[0]["name"] == "key=anonymous"
    assert [one["title"] for one in client.get("/admin/alarms").json()] == ["A message could not be handled"]
