"""The loop: each trajectory trains once, whatever crashes or comes twice; what does not train is counted."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
import torch
from safetensors import SafetensorError
from sqlalchemy.exc import OperationalError

from online_rl import checkpoint
from online_rl.checkpoint import CheckpointNotSaved
from online_rl.learner import DISK_SECONDS, run_round
from online_rl.ledger import Ledger
from online_rl.schemas import VersionState
from online_rl.tables import drops, trainings, updates
from serving.schemas import VersionSpan
from tests.learner.fakes import FakeLog, LogAway
from tests.learner.harness import make_service
from tests.learner.tiny import SETTINGS, make_trajectories, make_trajectory

TRAINED = sa.select(trainings.c.trajectory_id).order_by(trainings.c.trajectory_id)


def ids(*numbers):
    return sorted(f"t{number}" for number in numbers)


def run(service, rounds=4):
    return [service.loop.round() for _ in range(rounds)]


def test_batches_train_in_order_and_are_published(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(9))
    service = make_service(tmp_path, model_folder, log)
    assert run(service, 3) == [True, True, False]
    assert service.column(TRAINED) == ids(*range(8))
    assert service.column(sa.select(updates.c.trajectories)) == [4, 4]
    assert log.committed == {0: 8}
    assert service.loop.waiting == 1
    versions = service.registry.list()
    assert [(v.version, v.parent, v.state) for v in versions[1:]] == [
        (1, 0, VersionState.CANDIDATE),
        (2, 1, VersionState.CANDIDATE),
    ]
    assert versions[2].metrics["update"] == 2


def test_an_id_that_comes_again_does_not_train_again(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(4), *make_trajectories(4), make_trajectory(4), make_trajectory(4))
    service = make_service(tmp_path, model_folder, log)
    assert run(service) == [True, False, False, False]
    assert service.loop.waiting == 1
    assert service.column(TRAINED) == ids(0, 1, 2, 3)


def test_an_id_that_was_trained_on_or_dropped_is_never_taken_again(tmp_path, model_folder):
    log = FakeLog()
    log.append(make_trajectory(90, greedy=True), *make_trajectories(4))
    service = make_service(tmp_path, model_folder, log)
    assert service.loop.round()
    log.append(make_trajectory(90, greedy=True), *make_trajectories(4))
    assert not service.loop.round()
    assert service.loop.waiting == 0
    restarted = make_service(tmp_path, model_folder, log)
    log.append(*make_trajectories(4))
    assert not restarted.loop.round()
    assert restarted.trainer.counters.updates == 1
    assert service.column(sa.select(updates.c.update)) == [1]


def test_a_short_batch_trains_after_its_time(tmp_path, model_folder):
    now = [0.0]
    log = FakeLog()
    log.append(make_trajectory(0))
    service = make_service(tmp_path, model_folder, log, clock=lambda: now[0])
    now[0] = 1000.0
    assert not service.loop.round()
    log.append(make_trajectory(1))
    assert not service.loop.round()
    now[0] += 29.0
    assert not service.loop.round()
    now[0] += 1.0
    assert service.loop.round()
    assert service.column(TRAINED) == ids(0, 1)


def test_what_cannot_be_parsed_is_buried_and_passed(tmp_path, model_folder):
    log = FakeLog()
    log.append(b"\xff{", b'{"schema_version": 1}', *make_trajectories(4))
    service = make_service(tmp_path, model_folder, log)
    assert service.loop.round()
    assert [record.offset for record, _ in service.buried] == [0, 1]
    assert "trajectory_id" in service.buried[1][1]
    assert log.committed == {0: 6}


def test_drops_are_counted_by_reason_with_their_id(tmp_path, model_folder):
    log = FakeLog()
    log.append(make_trajectory(90, greedy=True), make_trajectory(91, behavior_logprobs=None), *make_trajectories(4))
    service = make_service(tmp_path, model_folder, log)
    assert service.loop.round()
    with service.engine.connect() as connection:
        rows = connection.execute(sa.select(drops.c.trajectory_id, drops.c.reason)).all()
    assert sorted(map(tuple, rows)) == [("t90", "greedy"), ("t91", "missing_logprobs")]
    assert service.column(TRAINED) == ids(0, 1, 2, 3)


def test_what_grows_stale_while_it_waits_is_dropped(tmp_path, model_folder):
    log = FakeLog()
    log.append(make_trajectory(0))
    service = make_service(tmp_path, model_folder, log)
    service.loop.round()
    for version in range(1, 10):
        service.registry.add_candidate(version, version - 1, f"v{version}", {})
    service.loop.round()
    assert service.column(sa.select(drops.c.reason)) == ["stale"]
    assert service.loop.waiting == 0


def test_rejected_candidates_make_nothing_stale(tmp_path, model_folder):
    log = FakeLog()
    service = make_service(tmp_path, model_folder, log)
    for version in range(1, 12):
        service.registry.add_candidate(version, 0, f"v{version}", {})
        service.registry.transition(version, VersionState.REJECTED, reason="superseded")
    log.append(*make_trajectories(4))
    assert service.loop.round()
    assert service.column(sa.select(drops.c.reason)) == []
    assert service.registry.get(12).parent == 0


def test_frozen_learning_reads_and_trains_nothing(tmp_path, model_folder):
    service = make_service(tmp_path, model_folder)
    service.registry.set_frozen(True, "test")
    assert run(service, 2) == [False, False]
    assert service.trainer.counters.updates == 0
    service.registry.set_frozen(False, "test")
    assert service.loop.round()


def test_after_a_restart_it_goes_on_from_the_checkpoint(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(10))
    run(make_service(tmp_path, model_folder, log), 2)
    log.append(*make_trajectories(2, start=10))
    service = make_service(tmp_path, model_folder, log)
    # The two that waited in memory are read again from the log.
    assert run(service, 2) == [True, False]
    assert service.column(TRAINED) == ids(*range(12))
    assert service.column(sa.select(updates.c.update)) == [1, 2, 3]


def test_a_crash_between_checkpoint_and_sql_is_completed(tmp_path, model_folder, monkeypatch):
    log = FakeLog()
    log.append(*make_trajectories(8))
    service = make_service(tmp_path, model_folder, log)

    class Crash(BaseException):
        pass

    def crash(*_args, **_kwargs):
        raise Crash

    monkeypatch.setattr("online_rl.ledger.Ledger.record_update", crash)
    with pytest.raises(Crash):
        service.loop.round()
    monkeypatch.undo()
    assert service.column(TRAINED) == []
    service = make_service(tmp_path, model_folder, log)
    assert run(service, 2) == [True, False]
    assert service.column(TRAINED) == ids(*range(8))
    assert service.column(sa.select(updates.c.update)) == [1, 2]


@pytest.mark.parametrize("method", ["record_update", "record_drops", "handled"])
def test_an_outage_of_the_database_loses_nothing(tmp_path, model_folder, monkeypatch, method):
    log = FakeLog()
    log.append(make_trajectory(90, greedy=True), *make_trajectories(8))
    service = make_service(tmp_path, model_folder, log)
    original = getattr(service.loop._ledger, method)
    failures = [True]

    def flaky(*args, **kwargs):
        if failures and (method == "handled" or args[0]):
            failures.pop()
            raise OperationalError("", {}, Exception("away"))
        return original(*args, **kwargs)

    monkeypatch.setattr(service.loop._ledger, method, flaky)
    with pytest.raises(OperationalError):
        service.loop.round()
    run(service, 3)
    assert service.column(TRAINED) == ids(*range(8))
    assert service.column(sa.select(drops.c.trajectory_id)) == ids(90)
    assert service.trainer.counters.updates == 2


def test_an_emptied_log_is_read_again_and_nothing_trains_twice(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(6))
    service = make_service(tmp_path, model_folder, log)
    assert service.loop.round()
    log.empty()
    log.append(*make_trajectories(4, start=4))  # 4 and 5 wait in the learner's memory
    assert run(service, 2) == [True, False]
    assert service.column(TRAINED) == ids(*range(8))
    assert log.committed == {0: 4}
    log.empty()
    log.append(*make_trajectories(4, start=8))
    restarted = make_service(tmp_path, model_folder, log)
    assert restarted.loop.round()
    assert restarted.column(TRAINED) == ids(*range(12))


def test_what_waits_while_the_log_is_emptied_is_not_lost_to_a_kill_after_the_next_update(tmp_path, model_folder):
    """It is sent again and skipped, because it waits; a restart must still find it."""
    log = FakeLog()
    log.append(*make_trajectories(10))
    service = make_service(tmp_path, model_folder, log)
    assert service.loop.round()
    log.empty()
    log.append(*make_trajectories(6, start=4))
    assert service.loop.round()
    assert service.column(TRAINED) == ids(*range(8))
    log.append(*make_trajectories(2, start=10))
    restarted = make_service(tmp_path, model_folder, log)
    assert restarted.loop.round()
    assert restarted.column(TRAINED) == ids(*range(12))


def test_a_log_that_is_away_is_asked_again(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(4))
    service = make_service(tmp_path, model_folder, log)
    log.away = True
    with pytest.raises(LogAway):
        service.loop.round()
    log.away = False
    assert service.loop.round()


def test_a_batch_that_cannot_train_is_dropped_and_the_next_one_trains(tmp_path, model_folder, monkeypatch):
    log = FakeLog()
    log.append(*make_trajectories(8))
    service = make_service(tmp_path, model_folder, log)
    original = service.trainer.objective
    broken = replace(original, loss=lambda inputs: (inputs.policy_logprobs.sum() * float("nan"), {}))
    with monkeypatch.context() as patch:
        patch.setattr(service.trainer, "objective", broken)
        assert service.loop.round()
    assert service.loop.round()
    assert service.column(sa.select(drops.c.reason)) == ["update_failed"] * 4
    assert service.column(TRAINED) == ids(4, 5, 6, 7)
    assert service.column(sa.select(updates.c.update)) == [1]
    assert service.registry.next_version() == 2


def test_the_ledger_takes_any_number_of_trajectories(tmp_path, model_folder):
    """A database takes a limited number of parameters in one statement."""
    service = make_service(tmp_path, model_folder)

    def count(_connection, _cursor, _statement, parameters, _context, many):
        assert many or len(parameters) <= 600

    sa.event.listen(service.engine, "before_cursor_execute", count)
    ledger = Ledger(service.engine)
    names = [f"x{number}" for number in range(1500)]
    for _ in range(2):
        ledger.record_update(1, 0, names[:700], {}, 1.0)
        ledger.record_drops(dict.fromkeys(names[700:], "stale"), 1.0)
    assert ledger.handled([*names, "unknown"]) == set(names)


def test_a_version_too_far_from_the_base_is_held_back(tmp_path, model_folder):
    settings = SETTINGS.model_copy(update={"kl_budget": 1e-6})
    service = make_service(tmp_path, model_folder, settings=settings)
    for parameter in service.trainer.policy.parameters().values():
        parameter.data.fill_(0.05)
    assert service.loop.round()
    assert service.trainer.counters.kl_to_base > 1e-6
    (_, held_back) = service.registry.list()
    assert held_back.state is VersionState.REJECTED
    assert held_back.reason is not None
    assert "kl_budget" in held_back.reason
    assert not service.publisher.folder(1).exists()


def test_a_full_disk_while_publishing_stops_nothing(tmp_path, model_folder, monkeypatch):
    service = make_service(tmp_path, model_folder)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(service.publisher, "publish", full)
        assert service.loop.round()
    assert service.registry.next_version() == 1
    assert service.loop.round()
    assert service.registry.get(1).metrics["update"] == 2


def attempt(service):
    """A round; what the disk has against it."""
    try:
        service.loop.round()
    except CheckpointNotSaved as error:
        return str(error)
    return ""


@pytest.mark.parametrize("refused", [0, 1, 2], ids=["the origin", "the first update", "the second"])
@pytest.mark.parametrize("killed", [False, True], ids=["waited for", "killed meanwhile"])
def test_a_full_disk_loses_no_update_and_makes_none_twice(tmp_path, model_folder, monkeypatch, refused, killed):
    def log_of_12():
        log = FakeLog()
        log.append(*make_trajectories(12))
        return log

    calm, log = make_service(tmp_path / "calm", model_folder, log_of_12()), log_of_12()
    run(calm, 3)
    service = make_service(tmp_path / "full", model_folder, log)
    saved, made = checkpoint.save_file, []

    def full(tensors, path):
        if f"u{refused:06d}" in str(path):
            path.write_bytes(b"half")
            raise SafetensorError("IoError(Os { code: 28, kind: StorageFull, message: No space left on device })")
        saved(tensors, path)

    original = service.trainer.update
    monkeypatch.setattr(
        service.trainer, "update", lambda batch, **more: (made.append(len(batch)), original(batch, **more))[1]
    )
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        problems = [attempt(service) for _ in range(4)]
        calm_rounds = max(0, refused - 1)
        assert problems[:calm_rounds] == [""] * calm_rounds
        for problem in problems[calm_rounds:]:
            assert f"update {refused} " in problem
            assert "No space left" in problem
        assert len(made) == refused
        assert service.column(TRAINED) == ids(*range(4 * calm_rounds))
        assert log.committed == ({0: 4 * calm_rounds} if calm_rounds else {})
        assert not list((tmp_path / "full" / "checkpoints").glob(".*"))
    if killed:
        service = make_service(tmp_path / "full", model_folder, log)
    run(service, 4)
    assert service.column(TRAINED) == ids(*range(12))
    assert log.committed == {0: 12}
    assert service.registry.get(3).metrics["update"] == 3
    tensors = service.trainer.tensors()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in calm.trainer.tensors().items())


def test_the_learner_says_that_the_disk_is_full_and_waits(tmp_path, model_folder, monkeypatch):
    service = make_service(tmp_path, model_folder)
    said = []

    def full(*_args):
        raise OSError(28, "No space left on device")

    status = SimpleNamespace(say=said.append)
    with monkeypatch.context() as patch:
        patch.setattr(service.loop._checkpoints, "save", full)
        assert run_round(service.loop, service.registry, status) == DISK_SECONDS
    assert "No space left on device" in said[-1]
    assert "make room in data_dir" in said[-1]
    assert run_round(service.loop, service.registry, status) == 0.0
    assert said[-1].startswith("1 updates")


def test_an_old_checkpoint_that_cannot_be_removed_stops_nothing(tmp_path, model_folder, monkeypatch):
    service = make_service(tmp_path, model_folder)

    def refuse(*_args, **_more):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("online_rl.checkpoint.shutil.rmtree", refuse)
    assert run(service, 3) == [True, True, True]


def test_mixed_versions_are_trained_by_their_oldest(tmp_path, model_folder):
    log = FakeLog()
    count = sum(make_trajectory(1).action_mask)
    spans = (VersionSpan(start=0, end=1, version=0), VersionSpan(start=1, end=count, version=1))
    log.append(make_trajectory(1, spans=spans), *make_trajectories(3, start=10))
    service = make_service(tmp_path, model_folder, log)
    service.registry.add_candidate(1, 0, "v1", {})
    assert service.loop.round()
    metrics = service.column(sa.select(updates.c.metrics))[0]
    assert metrics["staleness/max"] == 1.0
