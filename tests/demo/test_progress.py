"""What becomes of a data folder that is there already."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from online_rl.demo import progress as progress_module
from online_rl.demo.options import DemoError, DemoOptions
from online_rl.demo.progress import FILE, Progress, key_of, open_progress


def finished_run(folder: Path) -> DemoOptions:
    options = DemoOptions(quick=True, data_dir=folder)
    folder.mkdir()
    Progress(key=key_of(options), finished=True).save(folder)
    (folder / "signing.key").write_text("precious")
    return options


def test_a_finished_run_s_folder_is_emptied(tmp_path: Path) -> None:
    options = finished_run(tmp_path / "demo")
    _, resumed = open_progress(options)
    assert not resumed
    assert not (tmp_path / "demo").exists()


def test_a_folder_whose_service_still_runs_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo --keep` leaves one."""
    options = finished_run(tmp_path / "demo")
    running = SimpleNamespace(url="http://127.0.0.1:8000", pid=4)
    monkeypatch.setattr(progress_module, "read_running", lambda folder: running)
    with pytest.raises(DemoError, match=r"a service runs on .*demo at http://127\.0\.0\.1:8000 \(process 4\)"):
        open_progress(options)
    assert (tmp_path / "demo" / FILE).exists()
    assert (tmp_path / "demo" / "signing.key").read_text() == "precious"
