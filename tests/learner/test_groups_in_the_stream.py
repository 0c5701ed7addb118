"""Groups leave the buffer whole, or short after their time; the learner counts the short ones."""

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from online_rl.buffer import Arrival, Buffer
from online_rl.tables import trainings, updates
from tests.learner.fakes import FakeLog
from tests.learner.harness import make_service
from tests.learner.tiny import SETTINGS, make_trajectory


def arrival(number, group=None, size=1, offset=None):
    trajectory = make_trajectory(number, group_id=group, group_size=size)
    return Arrival(trajectory, 0, number if offset is None else offset, "log")


def make_buffer(*arrivals, **changes):
    buffer = Buffer(**({"batch_size": 4, "min_batch": 2, "batch_seconds": 30.0, "group_seconds": 60.0} | changes))
    for one in arrivals:
        buffer.add(one, 0.0)
    return buffer


def ids(taken):
    return None if taken is None else [trajectory.trajectory_id for trajectory in taken]


def test_a_group_waits_for_its_last_member():
    buffer = make_buffer(*(arrival(n, "a", 4) for n in range(3)))
    assert buffer.ready(0.0) == 0
    assert buffer.take(59.0) is None
    buffer.add(arrival(3, "a", 4), 59.0)
    assert ids(buffer.take(59.0)) == ["t0", "t1", "t2", "t3"]
    assert len(buffer) == 0


def test_who_has_no_group_does_not_wait_for_one():
    buffer = make_buffer(arrival(0, "a", 2), *(arrival(n) for n in range(1, 5)))
    assert ids(buffer.take(0.0)) == ["t1", "t2", "t3", "t4"]
    assert buffer.ids == {"t0"}
    # What waits for its group holds back the offset to go on from after a crash.
    assert buffer.safe_offsets({0: 5}, "log") == {0: 0}


def test_a_group_that_does_not_fill_goes_as_it_is_after_its_time():
    buffer = make_buffer(arrival(0, "a", 3), arrival(1, "a", 3))
    assert buffer.take(59.9) is None
    assert buffer.ready(60.0) == 2
    assert buffer.take(60.0) is None  # now the batch begins to wait for more
    assert ids(buffer.take(90.0)) == ["t0", "t1"]


def test_a_group_of_unknown_size_always_waits():
    buffer = make_buffer(*(arrival(n, "a", 1) for n in range(4)))
    assert buffer.take(59.0) is None
    assert ids(buffer.take(60.0)) == ["t0", "t1", "t2", "t3"]


def test_a_group_is_never_cut_by_the_size_of_the_batch():
    buffer = make_buffer(*(arrival(n, "a", 3) for n in range(3)), *(arrival(n, "b", 3) for n in range(3, 6)))
    assert ids(buffer.take(0.0)) == ["t0", "t1", "t2"]
    large = make_buffer(*(arrival(n, "a", 6) for n in range(6)))
    assert ids(large.take(0.0)) == [f"t{n}" for n in range(6)]


def test_without_group_seconds_groups_are_nothing():
    buffer = make_buffer(*(arrival(n, "a", 9) for n in range(4)), group_seconds=None)
    assert ids(buffer.take(0.0)) == ["t0", "t1", "t2", "t3"]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=14), st.integers(2, 4), st.integers(1, 6))
def test_everything_leaves_once_and_a_whole_group_in_one_batch(groups, size, batch_size):
    buffer = make_buffer(
        *(arrival(n, group, size if group else 1) for n, group in enumerate(groups)), batch_size=batch_size, min_batch=1
    )
    batches = []
    for now in (0.0, 30.0, 60.0, *(90.0 + 30 * n for n in range(20))):
        while (batch := buffer.take(now)) is not None:
            batches.append(batch)
    left = [trajectory.trajectory_id for batch in batches for trajectory in batch]
    assert sorted(left) == sorted(f"t{n}" for n in range(len(groups)))
    for group in ("a", "b", "c"):
        assert sum(any(t.group_id == group for t in batch) for batch in batches) <= 1


def grouped(number, group, size):
    return make_trajectory(number, group_id=group, group_size=size)


@pytest.mark.parametrize("objective", ["grpo", "asympo"])
def test_the_learner_trains_on_whole_groups_and_counts_the_short_ones(tmp_path, model_folder, objective):
    now = [0.0]
    log = FakeLog()
    log.append(*(grouped(n, "a", 3) for n in range(3)), grouped(3, "b", 3), grouped(4, "b", 3))
    learner = SETTINGS.model_copy(update={"objective": objective, "batch_size": 3})
    service = make_service(tmp_path, model_folder, log, learner, clock=lambda: now[0])
    assert service.trainer.value is None
    assert [service.loop.round(), service.loop.round()] == [True, False]
    assert log.committed == {0: 3}
    now[0] = 60.0
    assert not service.loop.round()
    now[0] = 90.0
    assert service.loop.round()
    found = service.column(sa.select(updates.c.metrics).order_by(updates.c.update))
    assert [(m["batch/groups"], m["batch/short_groups"]) for m in found] == [(1.0, 0.0), (1.0, 1.0)]
    assert len(service.column(sa.select(trainings.c.trajectory_id))) == 5


def test_many_unfinished_groups_do_not_keep_their_members_out(tmp_path, model_folder):
    """The first members of 20 groups come before all the second ones: more than the learner reads ahead."""
    log = FakeLog()
    log.append(*(grouped(n, f"g{n % 20}", 2) for n in range(40)))
    learner = SETTINGS.model_copy(update={"objective": "naive", "batch_size": 2, "publish_every": 100})
    service = make_service(tmp_path, model_folder, log, learner)
    for _ in range(30):
        service.loop.round()
    assert service.trainer.counters.updates == 20
