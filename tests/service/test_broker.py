"""The embedded broker is there as long as the service is, on one port, and never longer."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from feedback.kafka_log import KafkaLog
from feedback.log_contract import LogUnavailable
from online_rl.service.broker import BrokerError, EmbeddedBroker, free_port
from tests.service.running import wait_for


def cluster_id(log: KafkaLog) -> str | None:
    try:
        return log.cluster_id()
    except LogUnavailable:
        return None


def test_it_comes_back_on_the_same_port_with_another_cluster_id(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker.log")
    broker.start()
    log = KafkaLog(broker.bootstrap_servers, client_id="test")
    try:
        first, pid = log.cluster_id(), broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for("another broker", lambda: broker.pid not in (None, pid), 15)
        wait_for("an answer from it", lambda: cluster_id(log) not in (None, first), 15)
        assert broker.restarts == 1
    finally:
        log.close()
        broker.stop()
    assert broker.pid is None


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"port {port} .*kafka\.embedded_port"):
            EmbeddedBroker(tmp_path / "broker.log", port).start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    code = f"""
import pathlib, time
from online_rl.service.broker import EmbeddedBroker
broker = EmbeddedBroker(pathlib.Path({str(tmp_path / "broker.log")!r}))
broker.start()
print(broker.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    broker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    wait_for("the broker's end", lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE, 10)


def test_by_itself_it_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    port = free_port()
    command = [str(Path(sys.executable).with_name("online-rl")), "broker", "--port", str(port)]
    command += ["--log-file", str(tmp_path / "broker.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"127.0.0.1:{port}" in process.stdout.readline()
        log = KafkaLog(f"127.0.0.1:{port}", client_id="test")
        assert log.cluster_id()
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert f"port {port}" in second.stderr
        log.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
