"""Fakes of what the loop meets at its edges: the log, and people who rate."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from feedback.schemas import TRAJECTORIES_TOPIC, Trajectory


@dataclass(frozen=True)
class FakeRecord:
    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes


@dataclass
class FakeLog:
    """A log in memory with one partition, which can be emptied, and go away."""

    records: list[FakeRecord] = field(default_factory=list)
    generation: int = 0
    away: bool = False
    committed: dict[int, int] = field(default_factory=dict)

    def append(self, *trajectories: Trajectory | bytes) -> None:
        for item in trajectories:
            value = item if isinstance(item, bytes) else item.model_dump_json().encode()
            self.records.append(FakeRecord(TRAJECTORIES_TOPIC, 0, len(self.records), None, value))

    def empty(self) -> None:
        self.records = []
        self.generation += 1

    def source(self, offsets: dict[int, int] | None = None) -> "FakeSource":
        return FakeSource(self, (offsets or {}).get(0, 0))


class LogAway(Exception):
    pass


class FakeSource:
    """Reads a FakeLog as `feedback.kafka_consumer.LogConsumer` reads Kafka."""

    def __init__(self, log: FakeLog, position: int) -> None:
        self._log = log
        self._position = position
        self._generation = log.generation

    @property
    def identity(self) -> str:
        return f"log-{self._generation}"

    def poll(self, max_records: int, timeout_s: float) -> Sequence[FakeRecord]:
        if self._log.away:
            raise LogAway
        if self._generation != self._log.generation:
            self._generation, self._position = self._log.generation, 0
        found = self._log.records[self._position : self._position + max_records]
        self._position += len(found)
        return found

    def commit(self, offsets: dict[int, int]) -> None:
        if self._log.away:
            raise LogAway
        self._log.committed = dict(offsets)
