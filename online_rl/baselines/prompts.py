"""What is remembered of each prompt: a bounded number of them, by a hash of their tokens."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable

from feedback.schemas import Trajectory


class RecentPrompts:
    """Some numbers for each of the `limit` prompts seen last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: OrderedDict[str, list[float]] = OrderedDict()

    def get(self, key: str) -> list[float] | None:
        return self._found.get(key)

    def put(self, key: str, numbers: list[float]) -> None:
        self._found[key] = numbers
        self._found.move_to_end(key)
        if len(self._found) > self._limit:
            self._found.popitem(last=False)

    def items(self) -> list[tuple[str, list[float]]]:
        """Longest unseen first."""
        return list(self._found.items())

    def replace(self, items: Iterable[tuple[str, list[float]]]) -> None:
        """Forget everything and remember `items` instead, of which the last were seen last."""
        self._found = OrderedDict()
        for key, numbers in items:
            self.put(key, numbers)


def prompt_key(trajectory: Trajectory) -> str:
    """Names the prompt: a hash of the tokens before the first one that was sampled."""
    prompt = trajectory.token_ids[: trajectory.action_mask.index(1)]
    return hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16).hexdigest()
