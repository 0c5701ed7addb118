"""One user fills at most a share of a batch, others never wait behind a flood, and who is alone still trains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from online_rl.buffer import Arrival, Buffer
from online_rl.settings import LearnerSettings
from online_rl.shares import count_bounded, find_eligible, user_of
from tests.learner.fakes import FakeLog
from tests.learner.harness import make_service
from tests.learner.tiny import SETTINGS, make_trajectory


def by(user, number=0, **more):
    return make_trajectory(number, user_id=user, **more)


def make_buffer(cap, *users, **changes):
    buffer = Buffer(**({"batch_size": 4, "min_batch": 2, "batch_seconds": 30.0, "user_cap": cap} | changes))
    for number, user in enumerate(users):
        buffer.add(Arrival(by(user, number), 0, number, "log"), 0.0)
    return buffer


def taken(buffer, now=0.0):
    batch = buffer.take(now)
    return None if batch is None else [trajectory.user_id for trajectory in batch]


def test_a_user_is_a_key_s_user_and_nobody_is_no_user():
    assert user_of(by(None)) is None
    assert user_of(by("ann", api_key_id="k1")) != user_of(by("ann", api_key_id="k2"))


@given(st.lists(st.sampled_from(["ann", "bob", None]), max_size=30), st.integers(1, 5))
def test_no_beginning_of_what_may_leave_exceeds_the_cap(users, cap):
    found = find_eligible([[by(user)] for user in users], cap)
    chosen = [users[index] for index in found]
    assert max(chosen.count("ann"), chosen.count("bob")) <= cap
    assert chosen.count(None) == users.count(None)
    assert chosen.count("ann") == min(users.count("ann"), cap)
    assert find_eligible([[by(user)] for user in users], None) == list(range(len(users)))


def test_a_group_that_alone_exceeds_the_cap_goes_by_itself():
    assert find_eligible([[by("ann")] * 3, [by("ann")], [by("bob")]], 2) == [0, 2]
    assert find_eligible([[by("ann")], [by("ann")] * 3, [by("bob")]], 2) == [0, 2]


def test_counting_with_a_bound():
    units = [[by("ann")]] * 5 + [[by(None)]] * 3 + [[by("bob")]]
    assert count_bounded(units, 2) == 2 + 3 + 1


def test_the_rest_of_a_flood_waits_for_later_batches():
    buffer = make_buffer(2, *["ann"] * 5, "bob", "eve")
    assert taken(buffer) == ["ann", "ann", "bob", "eve"]
    assert len(buffer) == 3
    assert taken(buffer) is None
    assert taken(buffer, 31.0) == ["ann", "ann"]
    assert taken(buffer, 31.0) is None


def test_without_a_cap_the_oldest_leave_first():
    assert taken(make_buffer(None, *["ann"] * 5, "bob")) == ["ann"] * 4


def test_those_without_a_user_are_not_bounded():
    assert taken(make_buffer(2, *[None] * 4)) == [None] * 4


def test_a_flood_takes_no_room_from_what_lies_behind_it_but_memory_is_bounded():
    assert make_buffer(2).room(0.0) == 16
    assert make_buffer(2, *["ann"] * 8).room(0.0) == 8
    assert make_buffer(2, *["ann"] * 50).room(0.0) == 8
    assert make_buffer(2, *["ann"] * (64 * 4 + 8)).room(0.0) == 0
    assert make_buffer(None, *["ann"] * 50).room(0.0) < 0


@pytest.mark.parametrize(
    ("changes", "cap"),
    [
        ({}, 8),
        ({"user_share": 1.0}, None),
        ({"user_share": 0.75}, 12),
        # One user alone must be able to fill the smallest batch, or the service would never learn.
        ({"user_share": 0.01}, 8),
        ({"user_share": 0.01, "min_batch": 1}, 1),
    ],
)
def test_the_cap_of_the_settings(changes, cap):
    assert LearnerSettings(**changes).user_cap == cap


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ValidationError):
        LearnerSettings(user_share=0.0)


def test_the_learner_keeps_the_share(tmp_path, model_folder):
    log = FakeLog()
    log.append(*(by("ann", number) for number in range(30)), by("bob", 30), by("eve", 31))
    settings = SETTINGS.model_copy(update={"user_share": 0.5})
    service = make_service(tmp_path, model_folder, log, settings)
    batches = []
    original = service.trainer.update
    service.trainer.update = lambda batch, **more: (
        batches.append([t.user_id for t in batch]),
        original(batch, **more),
    )[1]
    while not batches:
        service.loop.round()
    assert sorted(batches[0]) == ["ann", "ann", "bob", "eve"]
