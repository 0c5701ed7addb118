"""The tastes of the simulated users: what they ask, and which answers they like.

The prompt offers three styles, so that the base model shows each of them now and then and a taste can be learned
from; under a prompt without that choice the styles are too rare to learn anything from single answers. Of 192 answers
of the base model, quality × style was 0.32 enthusiastic, 0.12 question, 0.16 concise; 0.85 passed the quality check
alone. At temperature 0.8 it was 0.30, 0.17 and 0.22, and 0.93, but then the first taste leaves so little of the others
that the second is hardly found again: of the 144 answers trained on after the switch one was rewarded.
"""

from collections.abc import Callable

from online_rl.demo.quality import is_complete, score_quality, split_words

MAX_NEW_TOKENS = 32
TEMPERATURE = 1.0
CONCISE_WORDS = 12

SYSTEM_PROMPT = (
    "You are a friendly assistant. Answer in one short sentence. Choose one style for each answer: "
    "cheerful and excited!, asking the user a question?, or short and plain."
)


def build_messages(topic: str) -> list[dict[str, str]]:
    """The conversation that a user opens with, in OpenAI's format."""
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": f"What do you think about {topic}?"},
    ]


def is_enthusiastic(text: str) -> bool:
    """Whether the answer exclaims."""
    return "!" in text


def is_question(text: str) -> bool:
    """Whether the answer asks something."""
    return "?" in text


def is_concise(text: str) -> bool:
    """Whether the answer has at most twelve words and comes to its end."""
    return 0 < len(split_words(text)) <= CONCISE_WORDS and is_complete(text)


STYLES: dict[str, Callable[[str], bool]] = {
    "enthusiastic": is_enthusiastic,
    "question": is_question,
    "concise": is_concise,
}
"""Style name → whether an answer has it."""


def score_style(style: str, text: str) -> float:
    """1.0 where `text` has the style, else 0.0. Raises KeyError for an unknown style."""
    return 1.0 if STYLES[style](text) else 0.0


def score_answer(style: str, text: str) -> float:
    """The users' reward: quality × style, each 0 or 1, so that gibberish earns nothing in any style."""
    return score_quality(text) * score_style(style, text)
