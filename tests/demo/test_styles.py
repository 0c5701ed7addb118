"""The tastes, by hand; and topics that do not leak into the held-out ones."""

import pytest

from online_rl.demo.quality import score_quality, split_words
from online_rl.demo.styles import STYLES, build_messages, score_answer, score_style
from online_rl.demo.topics import HELD_OUT_TOPICS, TRAINING_TOPICS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I love apples!", {"enthusiastic", "concise"}),
        ("Apples are good. Do you like them?", {"question", "concise"}),
        ("Apples are good.", {"concise"}),
        ("Apples are good", set()),
        ("Apples are good, and what I like most about them is that they keep all winter.", set()),
        ("one two three four five six seven eight nine ten eleven twelve.", {"concise"}),
        ("one two three four five six seven eight nine ten eleven twelve thirteen.", set()),
    ],
)
def test_styles(text: str, expected: set[str]) -> None:
    assert {style for style in STYLES if score_style(style, text) == 1.0} == expected


def test_reward_is_quality_times_style() -> None:
    assert score_answer("enthusiastic", "I love apples, they are great!") == 1.0
    assert score_answer("enthusiastic", "I like apples, they are great.") == 0.0
    assert score_answer("enthusiastic", "qzx wkj vvb qqr!") == 0.0


def test_unknown_style() -> None:
    with pytest.raises(KeyError):
        score_style("cute", "I love apples!")


def test_topics_are_disjoint_and_pass_the_quality_check_themselves() -> None:
    assert len(set(TRAINING_TOPICS)) == len(TRAINING_TOPICS) >= 150
    assert len(set(HELD_OUT_TOPICS)) == len(HELD_OUT_TOPICS) >= 40
    assert not set(TRAINING_TOPICS) & set(HELD_OUT_TOPICS)
    for topic in TRAINING_TOPICS + HELD_OUT_TOPICS:
        assert score_quality(f"I think {topic} can be very nice.") == 1.0, split_words(topic)


def test_the_prompt_names_the_topic_and_offers_the_styles() -> None:
    system, user = build_messages("rivers")
    assert user == {"role": "user", "content": "What do you think about rivers?"}
    assert all(word in system["content"] for word in ("cheerful", "question", "short"))
