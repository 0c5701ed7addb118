"""Checkpoints come back to the bit, and damage is found."""

import pytest
import torch

from online_rl.checkpoint import CheckpointError, Checkpoints, LearnerState
from online_rl.loop import restore_counters
from tests.learner.tiny import make_trainer, make_trajectories


def make_state(update, **changes):
    values = {
        "update": update,
        "value_updates": 0,
        "version": 0,
        "offsets": {0: 4 * update},
        "log_identity": "a",
        "trained_ids": ("x", "y"),
        "metrics": {"reward/mean": 0.5},
        "trained_at": 1.5,
        "random_state": bytes(torch.get_rng_state().numpy()).hex(),
        "base_sha256": "0",
    }
    return LearnerState.model_validate(values | changes)


def test_what_is_saved_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.load() is None
    tensors = {"a": torch.randn(3), "step": torch.tensor(4.0)}
    state = make_state(7)
    checkpoints.save(state, tensors)
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[0] == state
    assert all(torch.equal(loaded[1][name], tensors[name]) for name in tensors)


def test_only_the_newest_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for update in range(1, 6):
        checkpoints.save(make_state(update), {"a": torch.tensor([float(update)])})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u000004", "u000005"]


@pytest.mark.parametrize("damage", ["flip", "cut", "no manifest", "no tensors"])
def test_a_damaged_one_is_passed_over(tmp_path, damage, caplog):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for update in (1, 2):
        checkpoints.save(make_state(update), {"a": torch.tensor([float(update)] * 100)})
    tensors = tmp_path / "u000002" / "tensors.safetensors"
    if damage == "flip":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    elif damage == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-10])
    elif damage == "no tensors":
        tensors.unlink()
    else:
        (tmp_path / "u000002" / "manifest.json").unlink()
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[0].update == 1
    assert "u000002" in caplog.text
    # The damaged one is replaced when its update comes again.
    checkpoints.save(make_state(2), {"a": torch.tensor([5.0])})
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[1]["a"].item() == 5.0


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(make_state(1), {"a": torch.zeros(1)})
    (tmp_path / "u000001" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json"):
        checkpoints.load()


def test_an_unfinished_one_is_not_seen(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    draft = tmp_path / ".u000009.draft"
    draft.mkdir()
    (draft / "state.json").write_text("{")
    assert checkpoints.load() is None


def test_a_resumed_trainer_goes_on_to_the_bit(tmp_path, model_folder):
    whole = make_trainer(model_folder)
    for start in (0, 4, 8):
        whole.update(make_trajectories(4, start))

    first = make_trainer(model_folder)
    first.update(make_trajectories(4, 0))
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(make_state(1, value_updates=first.counters.value_updates), first.tensors())
    resumed = make_trainer(model_folder)
    loaded = checkpoints.load()
    assert loaded is not None
    resumed.load(loaded[1])
    resumed.counters = restore_counters(loaded[0])
    for start in (4, 8):
        resumed.update(make_trajectories(4, start))
    left, right = whole.tensors(), resumed.tensors()
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
