"""One turn: sort three to six digits. ``BEGIN SORT 5 2 9 GIVES`` → ``2 5 9 END``."""

from collections.abc import Sequence
from random import Random

from benchmarks.papers.tasks.episode import Task
from benchmarks.papers.tasks.vocabulary import DIGITS, Token


class SortingEpisode:
    """The answer is right where it is exactly the digits in rising order, and END."""

    def __init__(self, digits: Sequence[int]) -> None:
        self.digits = tuple(digits)
        self.prompt = (Token.BEGIN, Token.SORT, *self.digits, Token.GIVES)
        self.reward = 0.0

    def observe(self, action: Sequence[int]) -> None:
        """One answer ends the episode."""
        self.reward = float(tuple(action) == (*sorted(self.digits), Token.END))

    def expert(self, rng: Random, error_rate: float) -> tuple[int, ...]:
        """Errs by exchanging the last digit of the answer for another digit."""
        answer = sorted(self.digits)
        if rng.random() < error_rate:
            answer[-1] = (answer[-1] + rng.randrange(1, DIGITS)) % DIGITS
        return (*answer, Token.END)


def make_episode(rng: Random) -> SortingEpisode:
    return SortingEpisode([rng.randrange(DIGITS) for _ in range(rng.randint(3, 6))])


SORTING = Task("sorting", make_episode, max_action=8, max_turns=1, max_length=17, error_rate=0.6)
