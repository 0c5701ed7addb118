"""Several turns with a tool: follow a chain of look-ups and report the largest value found.

::

    BEGIN FIND 2 7 GIVES            two hops from key 7
    CALL 7 END                      action
    RESULT NOISE NOISE 3 END        observation: 7 leads to 3
    CALL 3 END                      action
    RESULT 8 END                    observation: 3 leads to 8
    ANSWER 8 END                    action, rewarded

The table is the environment's own: the answer cannot be known without the calls. Hops and noise vary, so lengths do,
and so does the difficulty: one hop is copied, four are compared.
"""

from collections.abc import Sequence
from random import Random

from benchmarks.papers.tasks.episode import Task
from benchmarks.papers.tasks.vocabulary import DIGITS, Token

MAX_HOPS = 4
MAX_NOISE = 3


class LookupEpisode:
    """Right where the answer is the largest value on the chain of `hops` look-ups."""

    def __init__(self, hops: int, key: int, table: Sequence[int], noise: Sequence[int]) -> None:
        """`table[digit]` is what the tool returns; `noise[i]` fillers precede the value of call i."""
        self.hops, self.key, self.table = hops, key, tuple(table)
        self._noise = list(noise)
        self.prompt = (Token.BEGIN, Token.FIND, hops, key, Token.GIVES)
        self.reward = 0.0
        self._chain = [key]
        """Where the expert stands: the key and the values that followed it."""

    @property
    def target(self) -> int:
        chain = [self.key]
        for _ in range(self.hops):
            chain.append(self.table[chain[-1]])
        return max(chain[1:])

    def observe(self, action: Sequence[int]) -> tuple[int, ...] | None:
        """The tool's result for a call; None for an answer and for anything malformed."""
        match tuple(action):
            case (Token.CALL, digit, Token.END) if digit < DIGITS and self._noise:
                value = self.table[digit]
                self._chain.append(value)
                return (Token.RESULT, *[Token.NOISE] * self._noise.pop(0), value, Token.END)
            case (Token.ANSWER, digit, Token.END):
                self.reward = float(digit == self.target)
        return None

    def expert(self, rng: Random, error_rate: float) -> tuple[int, ...]:
        """Errs by answering too soon, or with any digit; the more hops, the more often, and never with one.

        So a question says something of its reward, which is what a value model can learn.
        """
        error_rate *= (self.hops - 1) / (MAX_HOPS - 1)
        done = len(self._chain) > self.hops
        if done or rng.random() < error_rate / 4:
            wrong = rng.random() < error_rate
            digit = rng.randrange(DIGITS) if wrong else max(self._chain[1:], default=self.key)
            return (Token.ANSWER, digit, Token.END)
        return (Token.CALL, self._chain[-1], Token.END)


MAX_CALLS = MAX_HOPS + 1


def make_episode(rng: Random) -> LookupEpisode:
    return LookupEpisode(
        hops=rng.randint(1, MAX_HOPS),
        key=rng.randrange(DIGITS),
        table=[rng.randrange(DIGITS) for _ in range(DIGITS)],
        noise=[rng.randint(0, MAX_NOISE) for _ in range(MAX_CALLS)],
    )


LOOKUP = Task(
    "lookup",
    make_episode,
    max_action=4,
    max_turns=MAX_CALLS + 1,
    max_length=5 + MAX_CALLS * (3 + MAX_NOISE + 3) + 4,
    error_rate=0.7,
)
