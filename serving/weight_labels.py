"""Labels under which the engine samples, and whether the weights behind a label were proved.

A policy version can be loaded more than once, and one of those loads can be bad. So every load gets a label of its
own, ``<version>#<load>``; the engine writes it on each token's span, and what a label stands for is decided when its
proof is. Generations with an undecided label wait for the verdict.
"""

from collections.abc import Callable, Iterable
from enum import Enum


class Verdict(Enum):
    UNDECIDED = "undecided"
    PROVED = "proved"
    TAINTED = "tainted"


class WeightLabels:
    """The labels of one replica. For one thread (the event loop's)."""

    def __init__(self) -> None:
        self._verdicts: dict[str, Verdict] = {}
        self._waiting: list[tuple[tuple[str, ...], Callable[[Verdict], None]]] = []
        self._loads = 0

    def new(self, version: int) -> str:
        self._loads += 1
        label = f"{version}#{self._loads}"
        self._verdicts[label] = Verdict.UNDECIDED
        return label

    @staticmethod
    def version(label: str) -> int:
        """The policy version of `label`. Raises ValueError for a label that is not ours."""
        return int(label.partition("#")[0])

    def decide(self, label: str, *, proved: bool) -> None:
        """Settle `label` and release what waited for it."""
        self._verdicts[label] = Verdict.PROVED if proved else Verdict.TAINTED
        waiting, self._waiting = self._waiting, []
        for labels, callback in waiting:
            self.when_decided(labels, callback)

    def when_decided(self, labels: Iterable[str], callback: Callable[[Verdict], None]) -> None:
        """Call `callback` with the worst verdict over `labels`, at once or when the last of them is decided.

        A label that this replica never gave is tainted.
        """
        labels = tuple(labels)
        verdicts = {self._verdicts.get(label, Verdict.TAINTED) for label in labels}
        if Verdict.UNDECIDED in verdicts:
            self._waiting.append((labels, callback))
        else:
            callback(Verdict.TAINTED if Verdict.TAINTED in verdicts else Verdict.PROVED)
