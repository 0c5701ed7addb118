"""Answers are checked exactly, and an expert without errors is always right."""

from random import Random

import pytest

from benchmarks.papers.tasks import TASKS, Task, Token, demonstrate, make_style_task
from benchmarks.papers.tasks.lookup import LookupEpisode
from benchmarks.papers.tasks.sorting import SortingEpisode
from benchmarks.papers.tasks.styles import BASE_RATES, STYLES, WORDS, StyleEpisode

EVERY = [*TASKS.values(), make_style_task("heroic")]


@pytest.mark.parametrize("task", [TASKS["sorting"], TASKS["lookup"]], ids=lambda task: task.name)
def test_an_expert_without_errors_is_always_right(task: Task) -> None:
    rng = Random(1)
    assert all(demonstrate(task, rng, 0.0)[2] == 1.0 for _ in range(200))


@pytest.mark.parametrize("task", EVERY, ids=lambda task: task.name)
def test_demonstrations_keep_within_the_task(task: Task) -> None:
    rng = Random(2)
    for _ in range(300):
        tokens, mask, reward = demonstrate(task, rng, task.error_rate)
        assert len(tokens) == len(mask) <= task.max_length
        assert mask[0] == 0
        assert mask[-1] == 1
        assert reward in (0.0, 1.0)
        assert longest_run(mask) <= task.max_action


def longest_run(mask: list[int]) -> int:
    return max(len(run) for run in "".join(map(str, mask)).split("0"))


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ((2, 2, 9, Token.END), 1.0),
        ((2, 9, 2, Token.END), 0.0),
        ((2, 9, Token.END), 0.0),
        ((2, 2, 9, 9, Token.END), 0.0),
        ((2, 2, 9), 0.0),
    ],
)
def test_sorting(action: tuple[int, ...], reward: float) -> None:
    episode = SortingEpisode([9, 2, 2])
    assert episode.prompt == (Token.BEGIN, Token.SORT, 9, 2, 2, Token.GIVES)
    assert episode.observe(action) is None
    assert episode.reward == reward


TABLE = (5, 0, 0, 0, 0, 8, 0, 0, 3, 0)
CALL_0, CALL_5 = (Token.CALL, 0, Token.END), (Token.CALL, 5, Token.END)


def make_lookup(hops: int = 2) -> LookupEpisode:
    return LookupEpisode(hops, key=0, table=TABLE, noise=[2, 0, 1])


def test_a_look_up_of_two_hops() -> None:
    episode = make_lookup()
    assert episode.observe(CALL_0) == (Token.RESULT, Token.NOISE, Token.NOISE, 5, Token.END)
    assert episode.observe(CALL_5) == (Token.RESULT, 8, Token.END)
    assert episode.observe((Token.ANSWER, 8, Token.END)) is None
    assert episode.reward == 1.0


@pytest.mark.parametrize(
    "actions",
    [
        [(Token.ANSWER, 5, Token.END)],
        [CALL_0, (Token.ANSWER, 5, Token.END)],
        [CALL_0, CALL_5, (Token.CALL, 8, Token.END), (Token.ANSWER, 3, Token.END)],
        [(Token.CALL, Token.CALL, Token.END)],
        [(Token.ANSWER, 8)],
        [CALL_0] * 4,
    ],
    ids=["blind", "too soon", "too far", "no digit", "cut off", "no calls left"],
)
def test_look_ups_that_fail(actions: list[tuple[int, ...]]) -> None:
    episode = make_lookup()
    assert [episode.observe(action) for action in actions][-1] is None
    assert episode.reward == 0.0


@pytest.mark.parametrize(
    ("action", "quality", "style"),
    [
        ((Token.CUTE_1, Token.CUTE_1, 8, Token.END), 1.0, 1.0),
        ((Token.CUTE_2, Token.HEROIC_1, 8, Token.END), 1.0, 0.0),
        ((Token.CUTE_2, Token.CUTE_1, 5, Token.END), 0.0, 1.0),
        ((Token.HEROIC_2, Token.HEROIC_1, 8, Token.END), 1.0, 0.0),
        ((Token.CUTE_1,), 0.0, 0.0),
    ],
)
def test_the_reward_is_quality_times_style(action: tuple[int, ...], quality: float, style: float) -> None:
    episode = StyleEpisode([3, 8, 5], "cute")
    assert episode.observe(action) is None
    assert (episode.quality, episode.style, episode.reward) == (quality, style, quality * style)


def test_the_expert_takes_the_styles_at_their_base_rates() -> None:
    rng = Random(3)
    first = [StyleEpisode([1, 2, 3], "cute").expert(rng, 0.0)[0] for _ in range(4000)]
    assert sum(BASE_RATES.values()) == pytest.approx(1.0)
    for style in STYLES:
        assert sum(word in WORDS[style] for word in first) / 4000 == pytest.approx(BASE_RATES[style], abs=0.03)
