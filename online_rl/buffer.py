"""Trajectories that were read and wait for their batch, and which offset is safe to go on from. Pure: time is given."""

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass

from feedback.schemas import Trajectory


@dataclass(frozen=True, slots=True)
class Arrival:
    """One admitted trajectory and where it lay in the log."""

    trajectory: Trajectory
    partition: int
    offset: int
    log_identity: str


class Buffer:
    """First in, first out. It lives in memory only: what it holds is read again from the log after a restart."""

    def __init__(self, *, batch_size: int, min_batch: int, batch_seconds: float) -> None:
        self._batch_size = batch_size
        self._min_batch = min(min_batch, batch_size)
        self._batch_seconds = batch_seconds
        self._arrivals: list[Arrival] = []
        self._ids: set[str] = set()
        self._enough_since: float | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def ids(self) -> Set[str]:
        return self._ids

    def add(self, arrival: Arrival, now: float) -> None:
        self._arrivals.append(arrival)
        self._ids.add(arrival.trajectory.trajectory_id)
        self._note(now)

    def __iter__(self) -> Iterator[Trajectory]:
        return (arrival.trajectory for arrival in self._arrivals)

    def remove(self, trajectory_ids: Collection[str], now: float) -> None:
        """Take out what may not train any more."""
        self._forget([arrival for arrival in self._arrivals if arrival.trajectory.trajectory_id in trajectory_ids], now)

    def take(self, now: float) -> list[Trajectory] | None:
        """The oldest full batch; or what is there, once `min_batch` have waited `batch_seconds`; else None."""
        waited = self._enough_since is not None and now - self._enough_since >= self._batch_seconds
        if len(self._arrivals) < self._batch_size and not waited:
            return None
        taken = self._arrivals[: self._batch_size]
        self._forget(taken, now)
        return [arrival.trajectory for arrival in taken]

    def safe_offsets(self, read: Mapping[int, int], log_identity: str) -> dict[int, int]:
        """Partition → offset before which nothing is waiting here, given what was `read` (the next offsets).

        What came from a log that was emptied since does not count: its place is gone, and it will be sent again.
        """
        safe = dict(read)
        for arrival in self._arrivals:
            if arrival.log_identity == log_identity:
                safe[arrival.partition] = min(safe.get(arrival.partition, arrival.offset), arrival.offset)
        return safe

    def _forget(self, gone: list[Arrival], now: float) -> None:
        ids = {arrival.trajectory.trajectory_id for arrival in gone}
        self._arrivals = [arrival for arrival in self._arrivals if arrival.trajectory.trajectory_id not in ids]
        self._ids -= ids
        if gone:
            self._enough_since = None
            self._note(now)

    def _note(self, now: float) -> None:
        if len(self._arrivals) < self._min_batch:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
