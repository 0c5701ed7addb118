"""A taste that changes: name the largest of three digits, in the style that the users prefer at the time.

``BEGIN LARGEST 3 8 5 GIVES`` → ``CUTE_1 CUTE_2 8 END``. The reward is quality × style: quality is 1 where the digit is
right, style is 1 where both words are of the preferred style. The warm start learns the styles at the rates of
`BASE_RATES`, so each of them can be found by sampling.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Literal

from benchmarks.papers.tasks.episode import Task
from benchmarks.papers.tasks.vocabulary import DIGITS, Token

Style = Literal["cute", "heroic", "classical"]

WORDS: dict[Style, tuple[Token, Token]] = {
    "cute": (Token.CUTE_1, Token.CUTE_2),
    "heroic": (Token.HEROIC_1, Token.HEROIC_2),
    "classical": (Token.CLASSICAL_1, Token.CLASSICAL_2),
}
STYLES: tuple[Style, ...] = tuple(WORDS)
BASE_RATES: dict[Style, float] = {"cute": 0.4, "heroic": 0.3, "classical": 0.3}
"""How often the expert of the warm start takes each style."""


class StyleEpisode:
    """`preferred` is what counts as good style in this episode."""

    def __init__(self, digits: Sequence[int], preferred: Style) -> None:
        self.digits = tuple(digits)
        self.preferred: Style = preferred
        self.prompt = (Token.BEGIN, Token.LARGEST, *self.digits, Token.GIVES)
        self.quality = 0.0
        self.style = 0.0

    @property
    def reward(self) -> float:
        return self.quality * self.style

    def observe(self, action: Sequence[int]) -> None:
        """One answer ends the episode."""
        words, rest = tuple(action[:2]), tuple(action[2:])
        self.quality = float(rest == (max(self.digits), Token.END))
        self.style = float(set(words) <= set(WORDS[self.preferred]) and len(words) == 2)

    def expert(self, rng: Random, error_rate: float) -> tuple[int, ...]:
        """Two words of one style, drawn by the base rates; errs in the digit."""
        (style,) = rng.choices(STYLES, weights=[BASE_RATES[style] for style in STYLES])
        digit = rng.randrange(DIGITS) if rng.random() < error_rate else max(self.digits)
        return (rng.choice(WORDS[style]), rng.choice(WORDS[style]), digit, Token.END)


def make_episode(rng: Random, preferred: Style) -> StyleEpisode:
    return StyleEpisode([rng.randrange(DIGITS) for _ in range(3)], preferred)


def make_style_task(preferred: Style) -> Task:
    """The task while users prefer that style; all of them share one warm start."""
    make = partial(make_episode, preferred=preferred)
    return Task("styles", make, max_action=5, max_turns=1, max_length=11, error_rate=0.2)
