"""Wild values wait for somebody to look at them; ordinary ones, rare ones included, never do."""

from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from feedback.assembler import Assembler
from feedback.inbox import Submission, store_feedback
from feedback.outliers import LEAST, OutlierWatch, is_far
from feedback.quarantine import list_quarantined, release_quarantined
from feedback.schemas import FeedbackIn
from feedback.settings import FeedbackSettings, MetricSettings
from feedback.tables import feedback, trajectories
from tests.feedback.samples import as_record, make_generation

SALE = MetricSettings(minimum=0.0, maximum=None)
SETTINGS = FeedbackSettings(metrics={"sale": SALE}, wait_seconds=100)
USUAL = [float(number % 20) for number in range(100)]


def test_far_is_far_from_the_middle_half() -> None:
    assert is_far(1e6, USUAL, 50)
    assert not is_far(100.0, USUAL, 50)
    assert is_far(100.0, USUAL, 5)
    # A few wild values among the usual ones change nothing.
    assert is_far(1e6, [*USUAL, 1e9, 1e9, 1e9], 50)


def test_of_few_values_none_is_unusual() -> None:
    assert not is_far(1e6, USUAL[: LEAST - 1], 50)


def test_where_all_say_the_same_another_value_is_news_and_no_outlier() -> None:
    assert not is_far(1.0, [0.0] * 100, 50)
    # One sale in a hundred is a sale.
    assert not is_far(1.0, [0.0] * 99 + [1.0], 50)


@given(st.lists(st.floats(-1e6, 1e6), min_size=LEAST, max_size=64))
def test_no_value_is_an_outlier_of_itself_and_its_like(values: list[float]) -> None:
    middle = sorted(values)[len(values) // 2]
    assert not is_far(middle, values, 50)


def test_only_metrics_without_both_bounds_are_watched() -> None:
    metrics = {
        "sale": SALE,
        "reward": MetricSettings(),
        "thumb": MetricSettings(type="boolean", minimum=None, maximum=None),
    }
    assert OutlierWatch(FeedbackSettings(metrics=metrics)).metrics == ["sale"]
    assert OutlierWatch(FeedbackSettings(metrics=metrics, outlier_deviations=None)).metrics == []


class World:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 2000.0
        self.assembler = self.restart()

    def restart(self) -> Assembler:
        self.assembler = Assembler(self.engine, SETTINGS, lambda: self.now)
        self.assembler.adopt_settings()
        return self.assembler

    def sell(self, name: str, value: float) -> None:
        self.assembler.store([as_record(make_generation(name, at=self.now - 10))])
        self.say(name, value)

    def say(self, name: str, value: float) -> None:
        said = FeedbackIn(inference_id=name, value=value, metric_name="sale")
        with self.engine.begin() as connection:
            store_feedback(connection, [Submission(said, value, "anonymous")], self.now)
        self.assembler.join_new()

    def column(self, column: sa.Column[Any]) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.scalars(sa.select(column).order_by(column.table.c.seq)))


@pytest.fixture
def world(engine: Engine) -> World:
    made = World(engine)
    for number in range(40):
        made.sell(f"i{number}", float(number % 10))
    assert set(made.column(feedback.c.status)) == {"used"}
    return made


def test_an_outlier_counts_for_nothing_until_it_is_released(world: World) -> None:
    world.sell("wild", 1e9)
    assert world.column(feedback.c.status)[-1] == "quarantined"
    assert len(world.column(trajectories.c.seq)) == 40
    (listed,) = list_quarantined(world.engine)
    assert (listed["value"], listed["metric_name"]) == (1e9, "sale")
    # The answer waits on, and another opinion on it counts alone.
    assert release_quarantined(world.engine, ["fb_none"]) == 0
    assert release_quarantined(world.engine, [listed["feedback_id"]]) == 1
    world.assembler.join_new()
    assert world.column(feedback.c.status)[-1] == "used"
    assert world.column(trajectories.c.reward)[-1] == 1e9
    assert list_quarantined(world.engine) == []


def test_one_that_came_before_its_answer_is_put_aside_too(world: World) -> None:
    world.say("wild", 1e9)
    world.assembler.store([as_record(make_generation("wild", at=1995.0))])
    assert world.column(feedback.c.status)[-1] == "quarantined"
    assert len(world.column(trajectories.c.seq)) == 40


def test_one_that_is_not_looked_at_yet_does_not_slip_in_with_its_answer(world: World) -> None:
    said = FeedbackIn(inference_id="wild", value=1e9, metric_name="sale")
    with world.engine.begin() as connection:
        store_feedback(connection, [Submission(said, 1e9, "anonymous")], world.now)
    world.assembler.store([as_record(make_generation("wild", at=1995.0))])
    assert len(world.column(trajectories.c.seq)) == 40


def test_after_a_restart_it_still_knows_what_is_usual(world: World) -> None:
    world.restart()
    world.sell("wild", 1e9)
    assert world.column(feedback.c.status)[-1] == "quarantined"


def test_all_at_once(world: World) -> None:
    for name in ("one", "two"):
        world.sell(name, 1e9)
    assert release_quarantined(world.engine, None) == 2
