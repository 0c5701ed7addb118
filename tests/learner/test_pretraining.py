"""Value pretraining: held-out variance is explained, the best weights reach the learner once, misuse is refused."""

import json
import logging
import zlib

import pytest
import sqlalchemy as sa
import torch
from safetensors import SafetensorError
from typer.testing import CliRunner

from feedback import tables as feedback_tables
from online_rl import cli
from online_rl.batch import make_batch
from online_rl.config import load_settings
from online_rl.durable_files import hash_file
from online_rl.learner import adopt_value
from online_rl.pretrained_value import NAME, PretrainedValueError, load_pretrained, save_pretrained
from online_rl.pretraining import UnfitTrajectories, explain_variance, pretrain, split_episodes
from online_rl.service import database
from online_rl.service.processes import AlreadyRunning, ServiceLock
from tests.learner.test_trainer import with_settings
from tests.learner.tiny import CPU, make_models, make_trainer, make_trajectories, make_trajectory

SETTINGS = with_settings(batch_size=16, value_learning_rate=1e-2)


def make_learnable(count, start=0):
    """The token right before the answer decides the reward."""
    found = []
    for number, trajectory in enumerate(make_trajectories(count, start)):
        tokens = list(trajectory.token_ids)
        tokens[6] = 10 + number % 2
        changes = {"token_ids": tuple(tokens), "reward": float(number % 2), "episode_id": f"e{start + number // 2}"}
        found.append(trajectory.model_copy(update=changes))
    return found


def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path, monkeypatch):
    save_pretrained(tmp_path, {"head.weight": torch.zeros(1, 32)}, "base")

    def full(_tensors, path, **_more):
        path.write_bytes(b"half")
        raise SafetensorError("IoError(Os { code: 28, kind: StorageFull, message: No space left on device })")

    monkeypatch.setattr("online_rl.pretrained_value.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_pretrained(tmp_path, {"head.weight": torch.ones(1, 32)}, "base")
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    found = load_pretrained(tmp_path)
    assert found is not None
    assert not found.tensors["head.weight"].any()


def test_episodes_are_never_split():
    trajectories = make_learnable(40)
    training, apart = split_episodes(trajectories, 0.25, seed=0)
    assert sorted(t.trajectory_id for t in training + apart) == sorted(t.trajectory_id for t in trajectories)
    assert len({t.episode_id for t in apart}) == 5
    assert not {t.episode_id for t in training} & {t.episode_id for t in apart}
    assert split_episodes(trajectories, 0.25, seed=0) == (training, apart)
    assert split_episodes(trajectories, 0.25, seed=1) != (training, apart)


def test_the_same_name_under_two_keys_is_two_episodes():
    trajectories = [make_trajectory(n, episode_id="e", api_key_id=f"k{n}") for n in range(4)]
    assert len(split_episodes(trajectories, 0.25, seed=0)[1]) == 1


def test_it_explains_the_variance_of_episodes_it_never_saw(model_folder):
    _, value = make_models(model_folder)
    seen = []
    found = pretrain(value, make_learnable(128), SETTINGS, device=CPU, max_epochs=12, on_epoch=seen.append, patience=12)
    assert found.before.explained_variance == pytest.approx(0.0, abs=1e-6)
    assert found.best.explained_variance > 0.5
    assert tuple(seen) == found.curve
    assert found.best.explained_variance == max(epoch.explained_variance for epoch in found.curve)
    assert found.train + found.held_out == 128


def test_it_stops_when_nothing_rises_and_keeps_the_best(model_folder):
    """Rewards that nothing predicts: what is learned by heart does not carry over."""
    _, value = make_models(model_folder)
    found = pretrain(value, make_trajectories(40), SETTINGS, device=CPU, max_epochs=50, patience=2)
    assert found.curve[-1].epoch == found.best.epoch + 2 < 50
    assert found.best.explained_variance >= found.before.explained_variance
    # What is handed over is the best epoch's, not the last one's.
    assert all(torch.equal(p, found.weights[name]) for name, p in value.parameters().items())
    held = make_batch(split_episodes(make_trajectories(40), 0.2, SETTINGS.seed)[1], max_tokens=512, gamma=1.0)
    assert explain_variance(value, held) == pytest.approx(found.best.explained_variance, abs=1e-6)


@pytest.mark.parametrize(
    ("trajectories", "problem"),
    [
        (make_learnable(20), "20 usable trajectories"),
        ([], "0 usable trajectories"),
        ([t.model_copy(update={"episode_id": "one"}) for t in make_learnable(40)], "one episode"),
        ([t.model_copy(update={"reward": 1.0}) for t in make_learnable(40)], "have the reward 1"),
    ],
)
def test_what_nothing_can_be_learned_from_is_refused(model_folder, trajectories, problem):
    _, value = make_models(model_folder)
    with pytest.raises(UnfitTrajectories, match=problem):
        pretrain(value, trajectories, SETTINGS, device=CPU)


@pytest.fixture
def pretrained(tmp_path, model_folder):
    """A data folder with pretrained weights, and the value of each of them."""
    trainer = make_trainer(model_folder)
    weights = {name: torch.randn_like(p) for name, p in trainer.value.model.parameters().items()}
    save_pretrained(tmp_path, weights, hash_file(model_folder / "model.safetensors"))
    return weights


def settings_on(folder, **learner):
    return load_settings({"data_dir": folder, "learner": learner})


def adopt(trainer, folder, model_folder, restored=None, **learner):
    base = hash_file(model_folder / "model.safetensors")
    return adopt_value(trainer, base, settings_on(folder, **learner), restored)


def holds(trainer, weights):
    return all(torch.equal(p, weights[name]) for name, p in trainer.value.model.parameters().items())


def test_the_learner_begins_with_it_and_says_so(tmp_path, model_folder, pretrained, caplog):
    caplog.set_level(logging.INFO)
    trainer = make_trainer(model_folder, SETTINGS)
    assert adopt(trainer, tmp_path, model_folder) == hash_file(tmp_path / NAME)
    assert holds(trainer, pretrained)
    assert "the value model begins with the pretrained weights" in caplog.text
    trainer.update(make_trajectories(4))
    assert trainer.counters.value_updates == SETTINGS.value_updates


def test_warm_up_or_not_is_a_setting(tmp_path, model_folder, pretrained):
    trainer = make_trainer(model_folder, SETTINGS)
    adopt(trainer, tmp_path, model_folder, pretrained_value="warm_up")
    assert holds(trainer, pretrained)
    trainer.update(make_trajectories(4))
    assert trainer.counters.value_updates == SETTINGS.value_warmup + SETTINGS.value_updates
    trainer = make_trainer(model_folder, SETTINGS)
    assert adopt(trainer, tmp_path, model_folder, pretrained_value="ignore") is None
    assert not holds(trainer, pretrained)


def test_it_is_taken_once(tmp_path, model_folder, pretrained):
    """What the learner made of it since is not thrown away at the next start; a new file is taken again."""

    class Restored:
        pretrained_value = hash_file(tmp_path / NAME)

    trainer = make_trainer(model_folder)
    assert adopt(trainer, tmp_path, model_folder, Restored) == Restored.pretrained_value
    assert not holds(trainer, pretrained)
    other = {name: tensor + 1 for name, tensor in pretrained.items()}
    save_pretrained(tmp_path, other, hash_file(model_folder / "model.safetensors"))
    assert adopt(trainer, tmp_path, model_folder, Restored) != Restored.pretrained_value
    assert holds(trainer, other)


def test_weights_of_another_model_or_setting_are_refused(tmp_path, model_folder, pretrained):
    trainer = make_trainer(model_folder)
    with pytest.raises(PretrainedValueError, match="another base model"):
        adopt_value(trainer, "other", settings_on(tmp_path), None)
    save_pretrained(tmp_path, {"head.weight": torch.zeros(1, 32)}, hash_file(model_folder / "model.safetensors"))
    with pytest.raises(PretrainedValueError, match=r"learner\.value_model"):
        adopt(trainer, tmp_path, model_folder)
    (tmp_path / NAME).write_bytes(b"cut off")
    with pytest.raises(PretrainedValueError, match="remove it"):
        load_pretrained(tmp_path)


def call(model_folder, folder, *arguments):
    options = ["--data-dir", str(folder), "--set", f"serving.model={model_folder}", "--set", "learner.dtype=float32"]
    for setting in ("value_learning_rate=0.01", "threads=1", "value_model=lora"):
        options += ["--set", f"learner.{setting}"]
    return CliRunner().invoke(cli.app, ["pretrain-value", *options, *arguments])


def store(folder, trajectories):
    engine = sa.create_engine(f"sqlite:///{folder / 'online_rl.db'}")
    database.upgrade(engine)
    rows = [
        {
            **{name: getattr(t, name) for name in ("trajectory_id", "api_key_id", "episode_id", "user_id", "reward")},
            "metrics": t.metrics,
            "tokens": len(t.token_ids),
            "action_tokens": sum(t.action_mask),
            "oldest_version": t.oldest_version,
            "event": zlib.compress(t.model_dump_json().encode(), 1),
            **{name: getattr(t, name) for name in ("generated_at", "rated_at", "released_at")},
        }
        for t in trajectories
    ]
    with engine.begin() as connection:
        connection.execute(sa.insert(feedback_tables.trajectories), rows)


def test_the_command_reads_what_the_service_stored(tmp_path, model_folder):
    store(tmp_path, make_learnable(64))
    result = call(model_folder, tmp_path, "--json", "--max-epochs", "8")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["explained_variance"]["after"] > 0.3 > report["explained_variance"]["before"]
    assert report["trajectories"]["train"] + report["trajectories"]["held_out"] == 64
    assert len(report["curve"]) > 1
    found = load_pretrained(tmp_path)
    assert found is not None
    assert found.base_sha256 == hash_file(model_folder / "model.safetensors")
    # Another data folder may learn from it, and the lock is free again.
    other = tmp_path / "other"
    result = call(model_folder, other, "--from", str(tmp_path), "--max-epochs", "1")
    assert result.exit_code == 0, result.output
    assert "held-out explained variance" in result.stdout
    ServiceLock(tmp_path).acquire("x").release()


def test_the_command_reads_a_file_and_names_a_bad_line(tmp_path, model_folder):
    lines = [t.model_dump_json() for t in make_learnable(33)]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(lines))
    result = call(model_folder, tmp_path, "--from", str(path), "--max-epochs", "1", "--json")
    assert result.exit_code == 0, result.output
    path.write_text("\n".join([*lines, '{"reward": 1}']))
    result = call(model_folder, tmp_path, "--from", str(path))
    assert "line 34: no trajectory: trajectory_id" in str(result.exception)


def test_the_command_refuses_while_the_service_runs(tmp_path, model_folder):
    lock = ServiceLock(tmp_path).acquire("http://here")
    try:
        result = call(model_folder, tmp_path)
        assert isinstance(result.exception, AlreadyRunning)
    finally:
        lock.release()
    assert "there is no database" in str(call(model_folder, tmp_path).exception)
