"""The held-out judge: its arithmetic by hand, and the real base model telling language from gibberish."""

import math
from pathlib import Path

import pytest

from online_rl.config import Settings
from online_rl.demo.judge import Judge, JudgedAnswer, distinct_bigram_share, judge_diversity, judge_likelihood


def test_likelihood_is_capped_and_falls_exponentially() -> None:
    assert judge_likelihood(-2.0, -3.0) == 1.0
    assert judge_likelihood(-3.0, -3.0) == 1.0
    assert judge_likelihood(-4.0, -3.0) == pytest.approx(math.exp(-1))


def test_bigrams_are_counted_within_each_answer() -> None:
    assert distinct_bigram_share(["a b c", "A b d"]) == 3 / 4  # ab, bc, ab, bd
    assert distinct_bigram_share(["a b", "c d"]) == 1.0
    assert distinct_bigram_share(["a", ""]) == 0.0


def test_diversity_is_the_ratio_to_the_base() -> None:
    assert judge_diversity(["a b", "a b"], ["a b", "c d"]) == 0.5
    assert judge_diversity(["a b", "c d"], ["a b", "a b"]) == 1.0
    with pytest.raises(ValueError):
        judge_diversity(["a b"], ["a"])


@pytest.mark.engine
def test_the_base_model_tells_language_from_gibberish() -> None:
    judge = Judge(Path(Settings().model_path))
    fluent = [JudgedAnswer("lakes", "Lakes are beautiful places to swim and to fish.", True)]
    scrambled = [JudgedAnswer("lakes", "fish Lakes and places beautiful to are to swim.", True)]
    gibberish = [JudgedAnswer("lakes", "ishoned temor qzx lake wilcyne vvb.", True)]
    parts = judge.judge(fluent, fluent)
    assert parts == {"likelihood": 1.0, "diversity": 1.0}
    assert judge.judge(scrambled, fluent)["likelihood"] < 0.3
    assert judge.judge(gibberish, fluent)["likelihood"] < 0.1
