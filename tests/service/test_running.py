"""The whole service, once: what its user sees, and what comes back after `kill -9`."""

import json
import os
import signal

import psutil
import pytest

from online_rl.service.processes import read_running
from tests.service.running import Service, run, wait_for

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def released(service: Service) -> int:
    return service.status()["trajectories_released"]


def test_an_answer_and_its_feedback_become_a_trajectory(service: Service) -> None:
    before = released(service)
    answer = service.ask()
    assert answer.status_code == 200
    assert answer.headers["x-policy-version"].isdigit()
    assert service.rate(answer.json()["id"]).status_code == 202
    wait_for("the trajectory", lambda: released(service) > before, 30)


def test_only_loopback_is_listened_on(service: Service) -> None:
    listening = [
        connection.laddr
        for process in service.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert any(address.port == service.port for address in listening)
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_second_up_names_the_first(service: Service) -> None:
    result = run("up", "--data-dir", str(service.data_dir), "--port", str(service.port + 1))
    assert result.returncode == 1
    assert service.url in result.stderr
    assert "Traceback" not in result.stderr
    assert service.ask().status_code == 200


def test_status_and_versions(service: Service) -> None:
    status = run("status", "--data-dir", str(service.data_dir), "--json")
    assert status.returncode == 0, status.stderr
    parts = json.loads(status.stdout)["parts"]
    assert {"assembler", "broker", "deployer", "supervisor"} <= parts.keys()
    versions = json.loads(run("versions", "--data-dir", str(service.data_dir), "--json").stdout)
    assert versions[0]["version"] == 0


def test_freeze_and_resume(service: Service) -> None:
    assert run("freeze", "--data-dir", str(service.data_dir), "--reason", "a test").returncode == 0
    wait_for("the freeze", lambda: service.status()["learning_frozen"], 10)
    assert run("resume", "--data-dir", str(service.data_dir)).returncode == 0
    wait_for("the end of the freeze", lambda: not service.status()["learning_frozen"], 10)


@pytest.mark.parametrize("part", ["assembler", "deployer", "learner"])
def test_a_killed_part_comes_back(service: Service, part: str) -> None:
    first = wait_for(f"the {part}'s heartbeat", lambda: max(service.part_pid(part), 0), 120)
    os.kill(first, signal.SIGKILL)
    assert service.ask().status_code == 200
    wait_for(f"another {part}", lambda: service.part_pid(part) not in (first, -1), 90)


def test_a_killed_broker_comes_back_and_loses_no_feedback(service: Service) -> None:
    before = released(service)
    first = service.ask().json()["id"]
    broker = service.broker()
    assert service.rate(first).status_code == 202
    broker.kill()
    second = service.ask()
    assert second.status_code == 200
    assert service.rate(second.json()["id"]).status_code == 202
    wait_for("another broker", lambda: service.broker().pid != broker.pid, 30)
    wait_for("both trajectories", lambda: released(service) >= before + 2, 60)


def test_kill_minus_nine_of_the_service_takes_everything_along(service: Service) -> None:
    """The last one: it ends the service that the others use. No engine outlives it, and the folder is free again."""
    # Ray's two agents notice after a minute that their cluster is gone; they hold nothing of the service's.
    everything = [process for process in service.processes() if "Agent" not in process.name()]
    service.process.kill()
    service.process.wait()
    _, alive = psutil.wait_procs(everything, timeout=30)
    assert alive == []
    assert read_running(service.data_dir) is None
