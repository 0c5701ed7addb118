"""Trajectories that were read and wait for their batch, and which offset is safe to go on from. Pure: time is given."""

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass

from feedback.schemas import Trajectory
from online_rl.groups import group_key
from online_rl.shares import count_bounded, find_eligible

BATCHES = 4
"""That are held in memory, so that the next one is there when it is due."""
MOST_BATCHES = 64
"""Held at most where one user's trajectories wait for their share, while others' are looked for behind them."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One admitted trajectory and where it lay in the log."""

    trajectory: Trajectory
    partition: int
    offset: int
    log_identity: str


class Buffer:
    """First in, first out. It lives in memory only: what it holds is read again from the log after a restart.

    With `group_seconds`, a group leaves whole: once it has as many members as its `group_size` says, or as it is
    once its first member has waited so long. Nobody knows the size of a group whose members each came alone with the
    same id (`group_size` 1), so that one always waits. A batch is then made of as many whole groups as fit.

    With `user_cap`, no more than so many of a batch are one user's.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        min_batch: int,
        batch_seconds: float,
        group_seconds: float | None = None,
        user_cap: int | None = None,
    ) -> None:
        self._batch_size = batch_size
        self._min_batch = min(min_batch, batch_size)
        self._batch_seconds = batch_seconds
        self._group_seconds = group_seconds
        self._user_cap = user_cap
        self._arrivals: list[Arrival] = []
        self._came: dict[str, float] = {}
        """Trajectory id → when it was added."""
        self._enough_since: float | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def ids(self) -> Set[str]:
        return self._came.keys()

    def add(self, arrival: Arrival, now: float) -> None:
        self._arrivals.append(arrival)
        self._came[arrival.trajectory.trajectory_id] = now
        self._note(now)

    def relocate(self, arrival: Arrival) -> None:
        """A trajectory that waits here was sent again to a log that had lost it: there is its place from now on."""
        name, identity = arrival.trajectory.trajectory_id, arrival.log_identity
        self._arrivals = [
            arrival if old.trajectory.trajectory_id == name and old.log_identity != identity else old
            for old in self._arrivals
        ]

    def __iter__(self) -> Iterator[Trajectory]:
        return (arrival.trajectory for arrival in self._arrivals)

    def remove(self, trajectory_ids: Collection[str], now: float) -> None:
        """Take out what may not train any more."""
        self._forget([arrival for arrival in self._arrivals if arrival.trajectory.trajectory_id in trajectory_ids], now)

    def take(self, now: float) -> list[Trajectory] | None:
        """The oldest full batch; or what is ready, once `min_batch` have been for `batch_seconds`; else None.

        A group larger than `batch_size` is a batch of its own.
        """
        self._note(now)
        ready = self._eligible(now)
        waited = self._enough_since is not None and now - self._enough_since >= self._batch_seconds
        if sum(map(len, ready)) < self._batch_size and not waited:
            return None
        taken: list[Arrival] = []
        for unit in ready:
            if taken and len(taken) + len(unit) > self._batch_size:
                break
            taken += unit
        self._forget(taken, now)
        return [arrival.trajectory for arrival in taken]

    def ready(self, now: float) -> int:
        """How many trajectories wait for nothing but the rest of their batch."""
        return sum(map(len, self._eligible(now)))

    def room(self, now: float) -> int:
        """How many more to look for. What waits for the rest of its group, or for its user's share, takes none."""
        units = [[arrival.trajectory for arrival in unit] for unit in self._ready(now)]
        if self._user_cap is None:
            return BATCHES * self._batch_size - sum(map(len, units))
        counted = count_bounded(units, BATCHES * self._user_cap)
        excess = sum(map(len, units)) - counted
        return min(BATCHES * self._batch_size - counted, MOST_BATCHES * self._batch_size - excess)

    def safe_offsets(self, read: Mapping[int, int], log_identity: str) -> dict[int, int]:
        """Partition → offset before which nothing is waiting here, given what was `read` (the next offsets).

        What came from a log that was emptied since does not count: its place is gone, and it will be sent again.
        """
        safe = dict(read)
        for arrival in self._arrivals:
            if arrival.log_identity == log_identity:
                safe[arrival.partition] = min(safe.get(arrival.partition, arrival.offset), arrival.offset)
        return safe

    def _eligible(self, now: float) -> list[list[Arrival]]:
        """What may leave together, whatever the size of a batch."""
        ready = self._ready(now)
        units = [[arrival.trajectory for arrival in unit] for unit in ready]
        return [ready[index] for index in find_eligible(units, self._user_cap)]

    def _ready(self, now: float) -> list[list[Arrival]]:
        """What may leave, in the order in which it began to come: single trajectories and whole groups."""
        units: dict[str, list[Arrival]] = {}
        for arrival in self._arrivals:
            group = None if self._group_seconds is None else group_key(arrival.trajectory)
            name = f"single:{arrival.trajectory.trajectory_id}" if group is None else f"group:{group}"
            units.setdefault(name, []).append(arrival)
        return [unit for name, unit in units.items() if name.startswith("single:") or self._complete(unit, now)]

    def _complete(self, group: list[Arrival], now: float) -> bool:
        size = max(arrival.trajectory.group_size for arrival in group)
        waited = now - self._came[group[0].trajectory.trajectory_id]
        return 1 < size <= len(group) or waited >= (self._group_seconds or 0.0)

    def _forget(self, gone: list[Arrival], now: float) -> None:
        ids = {arrival.trajectory.trajectory_id for arrival in gone}
        self._arrivals = [arrival for arrival in self._arrivals if arrival.trajectory.trajectory_id not in ids]
        for name in ids:
            self._came.pop(name, None)
        if gone:
            self._enough_since = None
            self._note(now)

    def _note(self, now: float) -> None:
        """Note since when there has been enough for a short batch."""
        if self.ready(now) < self._min_batch:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
