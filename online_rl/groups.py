"""Which trajectories are answers to one prompt that are to be compared with each other."""

from collections import Counter
from collections.abc import Sequence

from feedback.schemas import Trajectory


def group_key(trajectory: Trajectory) -> str | None:
    """None for a trajectory without a group. Groups of two API keys are never the same, whatever their ids."""
    return None if trajectory.group_id is None else f"{trajectory.api_key_id}/{trajectory.group_id}"


def find_groups(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """Indices of `trajectories` by group. Who is alone has no group; all who have none are one: the batch."""
    sizes = Counter(group_key(trajectory) for trajectory in trajectories)
    groups: dict[str | None, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        key = group_key(trajectory)
        groups.setdefault(key if sizes[key] > 1 else None, []).append(index)
    return list(groups.values())


def count_short_groups(trajectories: Sequence[Trajectory]) -> tuple[int, int]:
    """How many groups there are, and how many of them lack members that `group_size` promised."""
    sizes = Counter(key for trajectory in trajectories if (key := group_key(trajectory)) is not None)
    promised: dict[str, int] = {}
    for trajectory in trajectories:
        key = group_key(trajectory)
        if key is not None:
            promised[key] = max(promised.get(key, 1), trajectory.group_size)
    return len(sizes), sum(sizes[key] < size for key, size in promised.items())
