"""The users' quality check, by hand."""

import pytest

from online_rl.demo.quality import is_known, known_words, score_quality
from online_rl.demo.styles import STYLES, score_answer


@pytest.mark.parametrize(
    "text",
    [
        "I like apples.",
        "I love mountains! They are beautiful in the morning, aren't they?",
        "Rainy weekends can be quite cozy, especially with a book and a cup of tea.",
        "It's a well-known fact that cats don't care what we think.",
        "Cooking at home is a wonderful way to spend time with your family, and it can also be a great way to sav",
    ],
)
def test_language_passes(text: str) -> None:
    assert score_quality(text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "Yes!",
        "!!!!!!!!",
        "asdkj qwpoe zxmnv lkjqw!",
        "Suicun Denithin wilcyne longhope temor.",
        "great great great great great!",
        "I love it! I love it! I love it! I love it!",
        "the cat the dog the cat the dog the cat the dog the cat the dog.",
        "It is such fun, it is good fun, and it is a game for all of the family.",
        "I love apples!!!!!!!",
        "1 2 3 4 5 6 7 8 9 10 11 12 apples are good",
        "Les montagnes enneigées étaient magnifiques hier soir.",
        "�� �� I love �� ��",
        "🎉🎉🎉 love it a lot 🎉🎉🎉🎉🎉🎉",
        "word " * 200,
    ],
)
def test_gibberish_repetition_and_emptiness_earn_nothing(text: str) -> None:
    assert score_quality(text) == 0.0
    assert all(score_answer(style, text) == 0.0 for style in STYLES)


def test_a_word_cut_by_the_token_limit_does_not_count_against_the_answer() -> None:
    assert score_quality("They are small zqx") == 1.0
    assert score_quality("They are small zqx.") == 0.0


def test_endings_and_contractions_are_known() -> None:
    for word in ("walked", "stories", "don't", "can't", "won't", "they're", "I’m", "quickly", "bakes", "hoping"):
        assert is_known(word), word
    for word in ("zqx", "xq", "temor's"):
        assert not is_known(word), word


def test_the_word_list_is_plain() -> None:
    words = known_words()
    assert len(words) > 20_000
    assert all(word.isascii() and word.isalpha() and word.islower() and len(word) > 2 for word in words)
