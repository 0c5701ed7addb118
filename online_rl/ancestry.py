"""Which updates a policy's weights hold: each goes on from the one before, or from the one it went back to. Pure.

An update that the divergence guard made went back to the weights of an earlier one (`guard/rolled_back_to` in its
metrics) and trained on nothing; what was made in between is in no later weights.
"""

from collections.abc import Iterable, Mapping, Sequence

Span = tuple[int, int]
"""The updates first..last, both included."""


def find_ancestry(update: int, went_back: Mapping[int, int]) -> list[Span]:
    """The updates whose changes are in the weights of `update`, newest first. `went_back`: update → the earlier one."""
    found: list[Span] = []
    last = update
    while last >= 1:
        turn = max((made for made in went_back if made <= last), default=0)
        found.append((max(turn, 1), last))
        last = min(went_back[turn], turn - 1) if turn else 0
    return found


def subtract(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """What of `spans` is in none of `others`, in the order of `spans`."""
    left = list(spans)
    for first, last in others:
        left = [piece for span in left for piece in _cut(span, first, last)]
    return left


def holds(spans: Iterable[Span], update: int) -> bool:
    return any(first <= update <= last for first, last in spans)


def _cut(span: Span, first: int, last: int) -> list[Span]:
    if last < span[0] or first > span[1]:
        return [span]
    pieces = ((span[0], first - 1), (last + 1, span[1]))
    return [(low, high) for low, high in pieces if low <= high]
