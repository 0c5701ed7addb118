"""What was erased never trains: not out of the buffer, not from the log again, not in an update that is running."""

import sqlalchemy as sa
import torch
from sqlalchemy.exc import OperationalError

from online_rl.ledger import ERASED, stop_training
from online_rl.tables import drops, trainings, updates
from tests.learner.fakes import FakeLog
from tests.learner.harness import make_service
from tests.learner.tiny import make_trajectories, make_trajectory

TRAINED = sa.select(trainings.c.trajectory_id).order_by(trainings.c.trajectory_id)


def erase(service, *numbers):
    with service.engine.begin() as connection:
        return stop_training(connection, [f"t{number}" for number in numbers], 1.0)


def ids(*numbers):
    return sorted(f"t{number}" for number in numbers)


def test_what_waits_in_the_buffer_is_let_go_of(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(3))
    service = make_service(tmp_path, model_folder, log)
    assert not service.loop.round()
    assert service.loop.waiting == 3
    assert erase(service, 1) == {"t1"}
    log.append(*make_trajectories(2, start=3))
    assert service.loop.round()
    assert service.column(TRAINED) == ids(0, 2, 3, 4)
    assert service.column(sa.select(drops.c.reason)) == [ERASED]


def test_what_comes_from_the_log_again_is_passed_over(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(4))
    service = make_service(tmp_path, model_folder, log)
    erase(service, 0)
    assert not service.loop.round()
    assert service.loop.waiting == 3
    log.empty()
    log.append(*make_trajectories(5))
    assert service.loop.round()
    assert service.column(TRAINED) == ids(1, 2, 3, 4)
    # Nor after a restart, which reads the log from its last checkpoint.
    restarted = make_service(tmp_path, model_folder, log)
    assert not restarted.loop.round()
    assert restarted.loop.waiting == 0


def erase_during_the_first_update(service, *numbers):
    """In the middle: the weights are changed, and nothing of it is saved yet."""
    original = service.trainer._update_policy

    def update(*arguments):
        found = original(*arguments)
        if numbers and not service.column(sa.select(drops.c.trajectory_id)):
            erase(service, *numbers)
        return found

    service.trainer._update_policy = update


def test_an_update_that_holds_it_is_undone_and_made_without_it(tmp_path, model_folder):
    def log_of(*numbers):
        log = FakeLog()
        log.append(*(make_trajectory(number) for number in numbers))
        return log

    service = make_service(tmp_path / "erased", model_folder, log_of(0, 1, 2, 3))
    erase_during_the_first_update(service, 2)
    assert service.loop.round()
    assert service.column(TRAINED) == ids(0, 1, 3)
    assert service.column(sa.select(updates.c.update)) == [1]
    # To the bit as if it had never been there.
    calm = make_service(tmp_path / "calm", model_folder, log_of(0, 1, 3))
    calm.loop._buffer._batch_size = 3
    assert calm.loop.round()
    tensors = service.trainer.tensors()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in calm.trainer.tensors().items())


def test_an_update_of_nothing_else_is_not_made(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(4))
    service = make_service(tmp_path, model_folder, log)
    before = {name: tensor.clone() for name, tensor in service.trainer.tensors().items()}
    erase_during_the_first_update(service, 0, 1, 2, 3)
    assert not service.loop.round()
    assert service.column(TRAINED) == []
    assert service.trainer.counters.updates == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in service.trainer.tensors().items())
    log.append(*make_trajectories(4, start=4))
    assert service.loop.round()
    assert service.column(TRAINED) == ids(4, 5, 6, 7)


def test_with_the_database_away_at_the_end_of_an_update_it_counts(tmp_path, model_folder, monkeypatch):
    service = make_service(tmp_path, model_folder)
    original = service.trainer._update_policy

    def away(_ids):
        raise OperationalError("", {}, Exception("away"))

    def update(*arguments):
        monkeypatch.setattr(service.loop._ledger, "handled", away)
        return original(*arguments)

    monkeypatch.setattr(service.trainer, "_update_policy", update)
    assert service.loop.round()
    assert service.column(TRAINED) == ids(0, 1, 2, 3)


def test_only_what_has_not_trained_is_stopped(tmp_path, model_folder):
    service = make_service(tmp_path, model_folder)
    assert service.loop.round()
    service.loop._ledger.record_drops({"t9": "stale"}, 1.0)
    assert erase(service, 0, 5, 9) == {"t5"}
    assert erase(service, 0, 5, 9) == set()
    assert erase(service) == set()


def test_the_first_mark_stays(tmp_path, model_folder):
    """The learner drops what somebody erases at the same moment."""
    service = make_service(tmp_path, model_folder)
    erase(service, 5)
    service.loop._ledger.record_drops({"t5": "stale", "t6": "stale"}, 1.0)
    with service.engine.connect() as connection:
        found = {row.trajectory_id: row.reason for row in connection.execute(sa.select(drops))}
    assert found == {"t5": ERASED, "t6": "stale"}
