"""`up` interrupted, killed, and with parts of its user's own."""

import os
import signal
import uuid
from pathlib import Path

import psutil
import pytest

from online_rl.service.broker import EmbeddedBroker, free_port
from online_rl.service.processes import read_running
from tests.postgres import require_postgres
from tests.service.running import Service, wait_for

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def test_ctrl_c_while_starting(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", free_port())
    try:
        service.wait_for_line("ray")
        assert service.stop(signal.SIGINT) == []
        assert service.process.returncode == 0, service.output
        assert "Traceback" not in service.output
    finally:
        service.kill()


def test_kill_minus_nine_takes_everything_along(tmp_path: Path) -> None:
    """No broker, engine or learner outlives the supervisor, and the folder can be used again."""
    service = Service(tmp_path / "data", free_port())
    try:
        service.wait_for_line("ray")
        everything = service.processes()
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        _, alive = psutil.wait_procs(everything, timeout=30)
        assert alive == []
        assert read_running(tmp_path / "data") is None
    finally:
        service.kill()


@pytest.mark.postgres
def test_a_broker_and_a_postgresql_of_ones_own(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker.log")
    postgres = require_postgres()
    service = None
    try:
        broker.start()
        postgres.start()
        url = postgres.create_database(f"t_{uuid.uuid4().hex}")
        servers = f"kafka.bootstrap_servers={broker.bootstrap_servers}"
        service = Service(tmp_path / "data", free_port(), "--set", servers, env={"DATABASE_URL": url})
        service.wait_for_line("ready in")
        answer = service.ask()
        assert service.rate(answer.json()["id"]).status_code == 202
        wait_for("the trajectory", lambda: service.status()["trajectories_released"] == 1, 30)
        assert not (tmp_path / "data" / "online_rl.db").exists()
        assert service.stop(signal.SIGTERM) == []
        assert service.process.returncode == 0, service.output
    finally:
        if service is not None:
            service.kill()
        broker.stop()
        postgres.close()
