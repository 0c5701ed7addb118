"""Files that are whole or not there, and what the disk's own errors become."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from online_rl import checkpoint, merged_weights
from online_rl.checkpoint import CheckpointNotSaved, Checkpoints
from online_rl.durable_files import disk_errors, finish_folder, start_folder
from tests.learner.harness import make_service

TENSORS = {"a": torch.zeros(1)}


def test_what_safetensors_says_of_the_disk_is_an_os_error(tmp_path: Path):
    for fail in (
        lambda: save_file(TENSORS, tmp_path / "missing" / "a.safetensors"),
        lambda: load_file(shutil.copy(__file__, tmp_path / "a.safetensors")),
    ):
        with pytest.raises(SafetensorError):
            fail()
        with pytest.raises(OSError) as caught, disk_errors():
            fail()
        assert isinstance(caught.value.__cause__, SafetensorError)
        assert str(caught.value) == str(caught.value.__cause__) != ""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("a"), RuntimeError("shapes")])
def test_every_other_error_passes_as_it_is(error: Exception):
    with pytest.raises(type(error)) as caught, disk_errors():
        raise error
    assert caught.value is error


@pytest.mark.parametrize("full", ["checkpoints", "versions"])
def test_the_learner_hears_of_a_full_disk_as_an_os_error(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, full: str
):
    """safetensors raises an error of its own, which the loop that tries again does not know."""
    service = make_service(tmp_path, model_folder)

    def refuse(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: No space left on device (os error 28)")

    module = checkpoint if full == "checkpoints" else merged_weights
    monkeypatch.setattr(module, "save_file", refuse)
    attempts = {
        "checkpoints": service.loop.round,
        "versions": lambda: service.publisher.publish(1, 0, update=1, recent=[], created_at=1.0),
    }
    with pytest.raises((OSError, CheckpointNotSaved), match="No space left"):
        attempts[full]()
    assert not service.publisher.folder(1).exists()
    assert Checkpoints(tmp_path / "checkpoints", 2).load() is None


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "v1"
    (start_folder(target) / "half").write_text("x")
    assert not target.exists()
    draft = start_folder(target)
    assert list(draft.iterdir()) == []
    (draft / "whole").write_text("x")
    finish_folder(draft, target)
    assert [path.name for path in tmp_path.rglob("*")] == ["v1", "whole"]
