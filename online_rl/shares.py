"""How much of a batch one user may fill: what exceeds it waits for a later batch. Pure.

A user is an API key's user id; who sends none cannot be told apart and is not bounded.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from feedback.schemas import Trajectory

User = tuple[str, str]


def user_of(trajectory: Trajectory) -> User | None:
    return None if trajectory.user_id is None else (trajectory.api_key_id, trajectory.user_id)


def find_eligible(units: Sequence[Sequence[Trajectory]], cap: int | None) -> list[int]:
    """Indices of those `units` (single trajectories, or whole groups) of which no user has more than `cap` places.

    In their order, so that any beginning of them keeps the cap, too. A group that alone exceeds it goes by itself.
    """
    if cap is None:
        return list(range(len(units)))
    taken: Counter[User] = Counter()
    found: list[int] = []
    for index, unit in enumerate(units):
        mine = _count(unit)
        if all(taken[user] == 0 or taken[user] + number <= cap for user, number in mine.items()):
            taken += mine
            found.append(index)
    return found


def count_bounded(units: Iterable[Sequence[Trajectory]], most: int) -> int:
    """Trajectories in `units`, of each user at most `most`."""
    everything = [trajectory for unit in units for trajectory in unit]
    named = _count(everything)
    return len(everything) - sum(max(0, number - most) for number in named.values())


def _count(trajectories: Iterable[Trajectory]) -> Counter[User]:
    return Counter(user for trajectory in trajectories if (user := user_of(trajectory)) is not None)
