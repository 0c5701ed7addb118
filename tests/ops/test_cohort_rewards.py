"""Rewards by cohort, named as drift events name them."""

import json
import zlib

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.schemas import Trajectory
from feedback.tables import trajectories
from online_rl.cohorts import find_cohorts, name_cohort
from online_rl.dashboard.cohort_rewards import POINTS, describe, find_names, read_cohorts


def test_every_cohort_of_the_past(database: Engine) -> None:
    found = {one.name: one for one in read_cohorts(database)}
    assert set(found) == {
        "key=anonymous", "length=32-63", "tag.taste=enthusiastic", "tag.taste=asks_a_question", "tag.taste=concise",
    }  # fmt: skip
    assert found["key=anonymous"].rewards == 240
    assert found["tag.taste=concise"].rewards == 80
    assert found["tag.taste=concise"].at == sorted(found["tag.taste=concise"].at)


def test_they_are_named_as_the_detectors_name_them(database: Engine) -> None:
    with database.connect() as connection:
        event = zlib.decompress(connection.scalar(sa.select(trajectories.c.event).limit(1)))
    theirs = find_cohorts(Trajectory.model_validate_json(event))
    assert find_names(json.loads(event)) == [name_cohort(*one) for one in theirs.items()]


def test_the_erased_are_left_out(database: Engine) -> None:
    with database.begin() as connection:
        connection.execute(sa.update(trajectories).values(erased_at=1.0, event=b""))
    assert read_cohorts(database) == []


def test_a_moving_average_ends_with_the_newest_and_is_no_longer_than_it_may_be() -> None:
    rated = [(float(at), float(at >= 500)) for at in range(1000)]
    found = describe("key=a", rated)
    assert len(found.at) <= POINTS
    assert (found.at[-1], found.average[-1]) == (999.0, 1.0)
    assert found.recent == 1.0
    assert found.mean == pytest.approx(0.5)
