"""What keeps `up` from starting: one clear message, exit code 1, no traceback, nothing left behind."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from online_rl.service.broker import free_port
from tests.service.running import run


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere/model"], ["/nowhere/model does not exist", "make setup"]),
        (["--set", "kafka.bootstrap_servers=127.0.0.1:1"], ["no Kafka broker answers at 127.0.0.1:1"]),
        (["--set", "cluster.memory_gib=100000"], ["memory:", "100000.0 GiB needed"]),
        (["--set", "serving.prot=1"], ["serving.prot", "no such setting"]),
        (["--set", "serving.replicas=none"], ["serving.replicas", "integer"]),
        (["--host", "0.0.0.0"], ["serving.host", "ONLINE_RL_API_KEYS"]),
        (["--set", "database.url=nonsense"], ["database.url"]),
    ],
    ids=["model", "broker", "memory", "unknown setting", "wrong type", "open to the world", "database url"],
)
def test_up_refuses(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    refused(run("up", "--data-dir", str(tmp_path / "data"), "--port", str(free_port()), *arguments), *words)
    assert not (tmp_path / "data").exists()


def test_database_down_hides_the_password(tmp_path: Path) -> None:
    url = "postgresql://someone:geheim@127.0.0.1:1/nothing"
    result = run("up", "--data-dir", str(tmp_path / "data"), "--port", str(free_port()), env={"DATABASE_URL": url})
    refused(result, "database:", "127.0.0.1")
    assert "geheim" not in result.stdout + result.stderr


def test_port_in_use_names_the_holder(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        refused(run("up", "--data-dir", str(tmp_path / "data"), "--port", str(port)), f"port {port}", str(os.getpid()))
    assert not (tmp_path / "data").exists()


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    refused(run("up", "--data-dir", str(file / "data")), str(file / "data"), "cannot be written")


def test_existing_files_survive_a_refusal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "precious").write_text("kept")
    refused(run("up", "--data-dir", str(data), "--model", "/nowhere"), "/nowhere")
    assert (data / "precious").read_text() == "kept"


def test_secrets_in_the_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "online_rl.toml"
    file.write_text('[api_keys]\n"very-secret" = ["admin"]\n')
    result = run("config", env={"ONLINE_RL_CONFIG": str(file)})
    refused(result, "api_keys", "ONLINE_RL_API_KEYS")
    assert "very-secret" not in result.stdout + result.stderr


def test_commands_without_a_database_say_so(tmp_path: Path) -> None:
    for command in ("versions", "drift", "freeze"):
        refused(run(command, "--data-dir", str(tmp_path)), "online-rl up")
    refused(run("status", "--data-dir", str(tmp_path)), "no service is running")
    assert list(tmp_path.iterdir()) == []
