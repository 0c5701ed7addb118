"""Which feedback counts, what reward it makes, and when."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.assembly import assemble
from feedback.joining import Drop, Release, Signal, Target, Wait, classify, combine_reward, decide, measure
from feedback.settings import FeedbackSettings, MetricSettings
from serving.schemas import Sampling
from tests.feedback.samples import make_generation

SETTINGS = FeedbackSettings()
TWO = FeedbackSettings(metrics={"style": MetricSettings(weight=3.0), "quality": MetricSettings()})


def signal(value: float = 1.0, **more: Any) -> Signal:
    return Signal(
        **{
            "feedback_id": f"fb{more.get('received_at', 1010.0)}",
            "owner": "anonymous",
            "inference_id": "inf1",
            "episode_id": None,
            "choice_index": 0,
            "metric_name": "reward",
            "value": value,
            "user_id": None,
            "received_at": 1010.0,
            **more,
        }
    )


def decided(generations: list[Any], signals: list[Signal], now: float, settings: FeedbackSettings = SETTINGS) -> Any:
    (draft,) = assemble(generations)
    return decide(draft, signals, now, settings)


def test_released_at_once_when_its_required_metric_is_in() -> None:
    found = decided([make_generation()], [signal(0.5)], now=1011.0)
    assert found == Release(0.5, {"reward": 0.5}, 1010.0)


def test_waits_for_its_window_without_feedback() -> None:
    assert decided([make_generation()], [], now=1011.0) == Wait(1001.0 + 600.0)


def test_dropped_as_unrated_at_the_end_of_the_window() -> None:
    assert decided([make_generation()], [], now=1601.0) == Drop("unrated")


def test_the_default_reward_at_the_end_of_the_window() -> None:
    settings = FeedbackSettings(default_reward=-0.5)
    assert decided([make_generation()], [], now=1601.0, settings=settings) == Release(-0.5, {}, 1601.0)


def test_waits_for_all_required_metrics_then_takes_what_is_there() -> None:
    half = [signal(1.0, metric_name="style")]
    assert decided([make_generation()], half, 1011.0, TWO) == Wait(1601.0)
    assert decided([make_generation()], half, 1601.0, TWO) == Release(1.0, {"style": 1.0}, 1010.0)
    both = [*half, signal(0.0, metric_name="quality")]
    assert decided([make_generation()], both, 1011.0, TWO) == Release(0.75, {"style": 1.0, "quality": 0.0}, 1010.0)


def test_an_optional_metric_is_not_waited_for() -> None:
    settings = FeedbackSettings(metrics={"reward": MetricSettings(), "length": MetricSettings(required=False)})
    assert isinstance(decided([make_generation()], [signal()], 1011.0, settings), Release)


def test_trap_13_feedback_counts_for_the_answer_it_names_and_no_other() -> None:
    assert decided([make_generation("other")], [signal()], now=1011.0) == Wait(1601.0)
    choices = [make_generation(choice=i, answer=(7 + i,), sampling=Sampling(n=2)) for i in range(2)]
    one, two = assemble(choices)
    rated_second = [signal(1.0, choice_index=1)]
    assert isinstance(decide(one, rated_second, 1011.0, SETTINGS), Wait)
    assert isinstance(decide(two, rated_second, 1011.0, SETTINGS), Release)


def test_choices_are_counted_across_prompts_as_in_the_response() -> None:
    fourth = make_generation(prompt_index=1, choice=1, sampling=Sampling(n=2))
    assert isinstance(decided([fourth], [signal(choice_index=3)], 1011.0), Release)
    assert isinstance(decided([fourth], [signal(choice_index=1)], 1011.0), Wait)


def test_feedback_of_another_key_does_not_count() -> None:
    mine = make_generation(api_key_id="mine")
    assert isinstance(decided([mine], [signal(owner="theirs")], 1011.0), Wait)
    assert isinstance(decided([mine], [signal(owner="mine")], 1011.0), Release)
    assert isinstance(decided([mine], [signal(owner="token:inf1")], 1011.0), Release)
    assert isinstance(decided([mine], [signal(owner="token:inf2")], 1011.0), Wait)


def test_trap_11_answers_without_an_episode_share_nothing() -> None:
    one, two = make_generation("a"), make_generation("b", prompt=(1, 2, 3, 10, 11, 4))
    episode = [signal(inference_id=None, episode_id="a")]
    assert isinstance(decided([one], episode, 1011.0), Release)
    assert isinstance(decided([two], episode, 1011.0), Wait)


def test_feedback_on_an_episode_rates_its_turns_so_far() -> None:
    first = make_generation("a", (1,), (7,), episode_id="e", at=1000)
    second = make_generation("b", (1, 7, 2), (8,), episode_id="e", at=1005)
    whole = signal(1.0, inference_id=None, episode_id="e")
    assert isinstance(decided([first, second], [whole], 1011.0), Release)
    later = make_generation("c", (5,), (8,), episode_id="e", at=1011)
    assert isinstance(decided([later], [whole], 1012.0), Wait)


def test_a_rating_of_any_turn_rates_the_trajectory() -> None:
    first = make_generation("a", (1,), (7,), episode_id="e", at=1000)
    second = make_generation("b", (1, 7, 2), (8,), episode_id="e", at=1005)
    found = decided([first, second], [signal(1.0, inference_id="b")], 1011.0)
    assert found == Release(1.0, {"reward": 1.0}, 1010.0)


def test_an_episode_that_may_go_on_is_waited_for_from_its_last_turn() -> None:
    first = make_generation("a", (1,), (7,), episode_id="e", at=1000)
    second = make_generation("b", (1, 7, 2), (8,), episode_id="e", at=1500)
    assert decided([first, second], [], 3000.0) == Wait(1501.0 + 1800.0)
    assert decided([first, second], [], 3301.0) == Drop("unrated")


def test_the_latest_vote_of_a_rater_counts() -> None:
    votes = [signal(1.0, received_at=1.0), signal(-1.0, received_at=3.0), signal(0.0, received_at=2.0)]
    assert measure(votes) == {"reward": -1.0}


def test_raters_are_averaged_and_then_the_answers() -> None:
    votes = [
        signal(1.0, inference_id="a", user_id="u1"),
        signal(0.0, inference_id="a", user_id="u2"),
        signal(1.0, inference_id="b", user_id="u1"),
    ]
    assert measure(votes) == {"reward": 0.75}


def test_trap_20_a_reward_that_is_no_number_is_dropped_not_trained_on() -> None:
    huge = FeedbackSettings(
        metrics={"reward": MetricSettings(minimum=None, maximum=None, weight=10.0)}, combine="weighted_sum"
    )
    assert decided([make_generation()], [signal(1.7e308)], 1011.0, huge) == Drop("reward_not_finite")
    weightless = FeedbackSettings(metrics={"reward": MetricSettings(weight=0.0)})
    assert decided([make_generation()], [signal()], 1011.0, weightless) == Drop("reward_not_finite")


def test_a_metric_that_is_no_longer_configured_is_left_out() -> None:
    assert isinstance(decided([make_generation()], [signal(metric_name="gone")], 1011.0), Wait)


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("weighted_mean", (3 * 0.5 + -1.0) / 4), ("weighted_sum", 0.5), ("product", -0.5), ("min", -1.0)],
)
def test_combinations(combine: Any, expected: float) -> None:
    settings = TWO.model_copy(update={"combine": combine})
    assert combine_reward({"style": 0.5, "quality": -1.0}, settings) == pytest.approx(expected)


@given(st.dictionaries(st.sampled_from(["style", "quality"]), st.floats(-1, 1), min_size=1))
def test_a_weighted_mean_lies_between_its_metrics(metrics: dict[str, float]) -> None:
    reward = combine_reward(metrics, TWO)
    assert math.isfinite(reward)
    assert min(metrics.values()) - 1e-9 <= reward <= max(metrics.values()) + 1e-9


VOTES = st.lists(
    st.builds(
        signal,
        st.floats(-1, 1),
        inference_id=st.sampled_from("ab"),
        user_id=st.sampled_from(["u", "v", None]),
        received_at=st.integers(0, 5).map(float),
        feedback_id=st.uuids().map(str),
    ),
    min_size=1,
    max_size=8,
)


@given(VOTES, st.randoms())
def test_the_measure_does_not_depend_on_the_order_of_arrival(votes: list[Signal], random: Any) -> None:
    shuffled = list(votes)
    random.shuffle(shuffled)
    assert measure(shuffled) == measure(votes)


@pytest.mark.parametrize(
    ("targets", "status"),
    [
        ([], "waiting"),
        ([Target("inf1", 0, "anonymous", "inf1", 0.0)], "joined"),
        ([Target("inf1", 0, "anonymous", "inf1", 0.0, "released")], "late"),
        ([Target("inf1", 0, "anonymous", "inf1", 0.0, "dropped", "unrated")], "late"),
        ([Target("inf1", 0, "anonymous", "inf1", 0.0, "dropped", "x-train")], "unused"),
        ([Target("inf1", 0, "theirs", "inf1", 0.0)], "refused"),
        ([Target("inf1", 1, "anonymous", "inf1", 0.0)], "waiting"),
    ],
)
def test_what_becomes_of_a_feedback(targets: list[Target], status: str) -> None:
    assert classify(signal(), targets) == status
