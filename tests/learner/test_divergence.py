"""The divergence guard: figures out of bounds several times in a row take the learner back, once, and it goes on."""

import shutil

import pytest
import sqlalchemy as sa
import torch

from online_rl.divergence import GuardState, find_excess, follow, has_diverged
from online_rl.learner import run_round
from online_rl.tables import drops, trainings, updates
from online_rl.update_errors import UpdateFailed
from tests.learner.fakes import FakeLog
from tests.learner.harness import make_service
from tests.learner.tiny import SETTINGS, make_trajectories

GUARDED = SETTINGS.model_copy(update={"guard_updates": 2, "guard_kl": 5.0, "publish_every": 3})


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("policy/loss", -101.0),
        ("value/loss", 100.5),
        ("policy/grad_norm", 1e9),
        ("value/grad_norm", 101.0),
        ("policy/kl_to_base", 5.1),
        ("policy/kl_to_base", float("nan")),
    ],
)
def test_each_figure_has_its_bound(figure, value):
    excess = find_excess({"reward/mean": 1e6, figure: value}, GUARDED)
    assert excess is not None
    assert excess.startswith(figure)
    assert "learner.guard_" in excess
    assert find_excess({figure: value / 1e9 if value == value else 5.0}, GUARDED) is None


def test_only_a_streak_counts_and_only_what_was_good_is_gone_back_to():
    state = follow(GuardState(), "bad", 0)
    state = follow(state, "bad", 1)
    assert state == GuardState(streak=2, good=None)
    assert not has_diverged(state, GUARDED)
    state = follow(state, None, 2)
    assert state == GuardState(streak=0, good=2)
    state = follow(state, "bad", 3)
    assert not has_diverged(state, GUARDED)
    state = follow(state, "bad", 4)
    assert state == GuardState(streak=2, good=2)
    assert has_diverged(state, GUARDED)
    assert not has_diverged(state, GUARDED.model_copy(update={"guard_updates": 0}))


def inject(service, bad, fail=()):
    """The updates counted from 1 in `bad` report a divergence that is out of bounds; those in `fail` fail."""
    original, calls = service.trainer.update, []

    def update(batch, **more):
        calls.append(1)
        if len(calls) in fail:
            raise UpdateFailed("policy update: loss nan")
        metrics = original(batch, **more)
        return metrics | ({"policy/kl_to_base": 9.0} if len(calls) in bad else {})

    service.trainer.update = update


def checkpoint_tensors(service, update):
    return service.loop._checkpoints.read(update)[1]


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_it_goes_back_to_the_last_good_checkpoint_and_nothing_trains_again(tmp_path, model_folder):
    """Updates 1 and 2 are fine, so the weights of checkpoint 1 are; 3 and 4 are not."""
    service = make_service(tmp_path, model_folder, settings=GUARDED)
    inject(service, bad={3, 4})
    for _ in range(3):
        assert service.loop.round()
    good = checkpoint_tensors(service, 1)
    assert not same(good, service.trainer.tensors())
    published = service.registry.next_version()
    assert service.loop.round()
    assert same(good, service.trainer.tensors())
    assert same(good, checkpoint_tensors(service, 4))

    # Where operators look: the update's row, the drops, the status, and the version that is published at once.
    rows = service.column(sa.select(updates.c.metrics).order_by(updates.c.update))
    assert rows[3] == {"guard/streak": 2.0, "guard/rolled_back_to": 1.0}
    assert [row["guard/streak"] for row in rows[:3]] == [0.0, 0.0, 1.0]
    assert sorted(service.column(sa.select(drops.c.reason))) == ["diverged"] * 4
    assert service.registry.next_version() == published + 1
    said = []
    run_round(service.loop, service.registry, type("Status", (), {"say": lambda _, text: said.append(text)})())
    assert "went back to the weights of update 1: policy/kl_to_base is 9, learner.guard_kl is 5" in said[0]

    assert service.loop.round()
    assert not service.loop.round()
    assert service.trainer.counters.updates == 6
    # 24 came; each trained in one update or was dropped.
    trained, dropped = (
        service.column(sa.select(trainings.c.trajectory_id)),
        service.column(sa.select(drops.c.trajectory_id)),
    )
    assert sorted(trained + dropped) == sorted(f"t{number}" for number in range(24))


def test_what_the_baseline_remembers_goes_back_too(tmp_path, model_folder):
    service = make_service(tmp_path, model_folder, settings=GUARDED.model_copy(update={"objective": "running_mean"}))
    inject(service, bad={3, 4})
    for _ in range(3):
        assert service.loop.round()
    good = service.loop._checkpoints.read(1)[0].baseline
    assert service.trainer.baseline_state() != good
    assert service.loop.round()
    assert service.trainer.baseline_state() == good
    assert service.loop._checkpoints.read(4)[0].baseline == good


def test_failures_count_too_and_the_first_updates_go_back_to_the_start(tmp_path, model_folder):
    service = make_service(tmp_path, model_folder, settings=GUARDED)
    start = {name: tensor.clone() for name, tensor in service.trainer.tensors().items()}
    inject(service, bad={2}, fail={3})
    for _ in range(3):
        service.loop.round()
    assert same(start, service.trainer.tensors())
    assert service.trainer.counters.updates == 3
    assert service.column(sa.select(updates.c.update)) == [1, 2, 3]
    assert service.column(sa.select(drops.c.reason)) == ["diverged"] * 4


def test_a_restart_in_the_middle_changes_nothing(tmp_path, model_folder):
    results = []
    for restart in (False, True):
        log = FakeLog()
        log.append(*make_trajectories(24))
        folder = tmp_path / str(restart)
        service = make_service(folder, model_folder, log, GUARDED)
        inject(service, bad={3, 4})
        for _ in range(3):
            service.loop.round()
        if restart:
            service = make_service(folder, model_folder, log, GUARDED)
            inject(service, bad={1})
        for _ in range(2):
            service.loop.round()
        results.append((service.loop._checkpoints.load(), service.column(sa.select(trainings.c.trajectory_id))))
    (calm, restarted) = results
    assert calm[1] == restarted[1]
    assert same(calm[0][1], restarted[0][1])
    assert calm[0][0].guard == restarted[0][0].guard


def test_a_crash_right_after_going_back_still_counts_the_drops(tmp_path, model_folder):
    service = make_service(tmp_path, model_folder, settings=GUARDED)
    inject(service, bad={2, 3})
    service.loop.round()
    service.loop.round()

    # The update up to its checkpoint, and then the process is gone: nothing reaches SQL.
    batch = service.loop._buffer.take(0.0)
    assert batch is not None
    service.loop._update(batch, 0)
    service.loop._checkpoints.save(service.loop._unsaved, service.trainer.tensors())
    assert service.column(sa.select(drops.c.reason)) == []
    again = make_service(tmp_path, model_folder, service.log, GUARDED)
    again.loop.round()
    assert service.column(sa.select(drops.c.reason)) == ["diverged"] * 4


def test_a_crash_in_the_very_first_update_loses_no_trajectory(tmp_path, model_folder):
    """The checkpoint of update 0 is there by then, and must not stand behind the batch in hand."""
    service = make_service(tmp_path, model_folder, settings=GUARDED)

    class Crash(BaseException):
        pass

    def crash(*_args, **_kwargs):
        raise Crash

    service.trainer.update = crash
    with pytest.raises(Crash):
        service.loop.round()
    assert (tmp_path / "checkpoints" / "u000000").is_dir()
    again = make_service(tmp_path, model_folder, service.log, GUARDED)
    for _ in range(6):
        again.loop.round()
    assert len(service.column(sa.select(trainings.c.trajectory_id))) == 24
    assert service.column(sa.select(updates.c.update)) == [1, 2, 3, 4, 5, 6]


def test_the_good_checkpoint_stays_on_disk_and_a_damaged_one_stops_nothing(tmp_path, model_folder, caplog):
    settings = GUARDED.model_copy(update={"guard_updates": 4})
    service = make_service(tmp_path, model_folder, settings=settings)
    inject(service, bad={2, 3, 4, 5})
    for _ in range(4):
        service.loop.round()
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["u000000", "u000003", "u000004"]
    shutil.rmtree(tmp_path / "checkpoints" / "u000000")
    assert service.loop.round()
    assert "no way back" in caplog.text
    assert service.trainer.counters.updates == 5
    assert service.column(sa.select(drops.c.reason)) == []


def test_a_step_far_too_large_is_noticed_and_undone(tmp_path, model_folder):
    """The real thing: the policy runs away from the base, and the guard brings it back."""
    settings = GUARDED.model_copy(update={"learning_rate": 5.0, "guard_kl": 0.5, "kl_budget": 1e9})
    service = make_service(tmp_path, model_folder, settings=settings)
    start = {name: tensor.clone() for name, tensor in service.trainer.tensors().items()}
    for _ in range(3):
        service.loop.round()
    assert "guard/rolled_back_to" in service.column(sa.select(updates.c.metrics).where(updates.c.update == 3))[0]
    assert same(start, service.trainer.tensors())
