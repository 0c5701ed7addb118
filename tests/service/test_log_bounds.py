"""Log files stay in bounds whoever writes them, and what is cut off can be read a while."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from online_rl.config import Settings
from online_rl.demo.service_process import ServiceProcess
from online_rl.service import supervisor
from online_rl.service.broker import EmbeddedBroker
from online_rl.service.log_bounds import bound_logs
from online_rl.service.supervisor import Supervisor
from online_rl.service.worker_setup import log_to_file

WRITER = """
import sys
for line in sys.stdin:
    print(line.strip() * 100, flush=True)
    print("wrote", file=sys.stderr, flush=True)
"""


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], root.level = handlers, level


def test_what_this_process_logs_is_cut_and_the_newest_pieces_stay(tmp_path: Path, root_logger: logging.Logger) -> None:
    log_to_file(tmp_path, "workers")
    for number in range(6):
        root_logger.info("line %d %s", number, "x" * 100)
        bound_logs(tmp_path, max_bytes=50, kept=2)
    root_logger.info("the end")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["workers.log", "workers.log.1", "workers.log.2"]
    newest = (tmp_path / "workers.log").read_bytes()
    assert newest.endswith(b"the end\n")
    assert b"\0" not in newest
    assert "line 5" in (tmp_path / "workers.log.1").read_text()
    assert "line 4" in (tmp_path / "workers.log.2").read_text()


@pytest.mark.parametrize("name", ["broker.log", "ray/worker-1.out"])
def test_a_process_that_was_given_its_file_goes_on_in_the_emptied_one(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.PIPE, text=True
        )
    assert process.stdin is not None
    assert process.stderr is not None
    for word in ("first", "second"):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        assert process.stderr.readline() == "wrote\n"
        if word == "first":
            bound_logs(tmp_path, max_bytes=50)
            assert file.stat().st_size == 0
    process.communicate()
    assert file.read_text() == "second" * 100 + "\n"
    assert file.with_name(f"{file.name}.1").read_text() == "first" * 100 + "\n"


def test_short_files_and_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "learner.log").write_bytes(b"x" * 50)
    (tmp_path / "notes.txt").write_bytes(b"x" * 500)
    bound_logs(tmp_path, max_bytes=50)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learner.log", "notes.txt"]


def test_on_a_full_disk_the_bound_is_kept_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "learner.log").write_bytes(b"x" * 100)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    bound_logs(tmp_path, max_bytes=50)
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("learner.log", 0)]


def opened_to_append(pid: int, file: Path) -> bool:
    """Whether every descriptor of process `pid` on `file` appends."""
    folder = Path(f"/proc/{pid}")
    numbers = [path.name for path in (folder / "fd").iterdir() if path.exists() and path.resolve() == file.resolve()]
    assert numbers
    flags = [(folder / "fdinfo" / number).read_text().split("flags:")[1].split()[0] for number in numbers]
    return all(int(value, 8) & 0o2000 for value in flags)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_broker_appends_to_its_file(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker.log")
    broker.start()
    try:
        assert broker.pid is not None
        assert opened_to_append(broker.pid, tmp_path / "broker.log")
    finally:
        broker.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_demo_s_service_appends_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "logs" / "demo-up.log"
    output.parent.mkdir()
    output.write_text("of a run before")
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _command, **options: popen(["sleep", "60"], **options))
    process = ServiceProcess(tmp_path, 1, ())
    process.start()
    try:
        assert process.pid is not None
        assert opened_to_append(process.pid, output)
        assert process.read_output() == ""
    finally:
        process.stop()


def test_the_supervisor_keeps_them_in_bounds_while_it_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Supervisor(Settings(data_dir=tmp_path), lambda _line: None)
    bounded: list[Path] = []

    def bound(folder: Path) -> None:
        bounded.append(folder)
        if len(bounded) == 2:
            service.request_stop()
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(supervisor, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "bound_logs", bound)
    monkeypatch.setattr(service, "_beat", lambda: None)
    service.watch()
    assert bounded == [tmp_path / "logs"] * 2
