"""`up` interrupted while it starts, and with a broker and a database of its user's own."""

import signal
import uuid
from pathlib import Path

import pytest

from online_rl.service.broker import EmbeddedBroker, free_port
from tests.postgres import require_postgres
from tests.service.running import Service, wait_for

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


def test_sigterm_while_starting(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", free_port())
    try:
        service.wait_for_line("ray")
        assert service.stop(signal.SIGTERM) == []
        assert service.process.returncode == 0, service.output
        assert "Traceback" not in service.output
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
        assert service.stop(signal.SIGINT) == []
        assert service.process.returncode == 0, service.output
        assert "stopped" in service.output
    finally:
        if service is not None:
            service.kill()
        broker.stop()
        postgres.close()
