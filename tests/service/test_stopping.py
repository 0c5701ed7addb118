"""The order in which the supervisor ends its parts, without any of them running."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from online_rl.config import Settings
from online_rl.service import cluster, supervisor
from online_rl.service.actors import PARTS
from online_rl.service.supervisor import Supervisor


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was ended, in order."""
    ended: list[str] = []
    monkeypatch.setattr(supervisor, "start_part", lambda part, *_: part.name)
    monkeypatch.setattr(supervisor, "stop_parts", lambda actors, _seconds: ended.extend(actors))
    monkeypatch.setattr(cluster, "stop_policy", lambda: ended.append("policy"))
    monkeypatch.setattr(cluster, "stop_ray", lambda: ended.append("ray"))
    monkeypatch.setattr(supervisor, "end_children", lambda _seconds: [])
    return ended


def make_running(folder: Path, ended: list[str], *, serving: bool) -> Supervisor:
    service = Supervisor(Settings(data_dir=folder), lambda _line: None)
    service._start_parts(list(PARTS))
    service._serving = serving
    service._clean = False
    service._broker = SimpleNamespace(stop=lambda: ended.append("broker"))  # pyright: ignore[reportAttributeAccessIssue]
    return service


def test_the_assembler_outlives_the_policy_and_the_broker_all(tmp_path: Path, ended: list[str]) -> None:
    service = make_running(tmp_path, ended, serving=True)
    service.stop()
    assert sorted(ended[:2]) == ["deployer", "learner"]
    assert ended[2:] == ["policy", "assembler", "ray", "broker"]
    service.stop()
    assert len(ended) == 6


def test_a_policy_that_never_answered_is_not_waited_for(tmp_path: Path, ended: list[str]) -> None:
    make_running(tmp_path, ended, serving=False).stop()
    assert "policy" not in ended
    assert ended[-3:] == ["assembler", "ray", "broker"]
