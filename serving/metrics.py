"""Our own Prometheus metrics, beside the engine's in the same registry; all begin with ``online_rl_``."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(slots=True)
class RequestCounts:
    """Finished inferences of this process, by the class of their status (``2xx`` …)."""

    by_class: dict[str, int] = field(default_factory=dict)

    def add(self, status: int) -> None:
        """Count one. 499 stands for a client that went away."""
        name = f"{status // 100}xx"
        self.by_class[name] = self.by_class.get(name, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.by_class.values())

    @property
    def failed(self) -> int:
        return self.by_class.get("5xx", 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the replica shows at one moment."""

    version: int | None
    running: int
    waiting_at_gate: int
    swap_seconds: float
    swaps: int
    spool_bytes: int
    spool_unsent_bytes: int
    log_available: bool
    counters: dict[str, int]
    """Name without prefix and ``_total`` → value."""


class ServingCollector(Collector):
    """Reads the values when they are asked for, so that counting costs the requests nothing."""

    def __init__(self, requests: RequestCounts, snapshot: Callable[[], Snapshot]) -> None:
        self._requests = requests
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("online_rl_requests", "Finished inferences.", labels=["status"])
        # The classes that alerts divide by are there from the start, so that the first failure is an increase.
        for name, count in sorted(({"2xx": 0, "5xx": 0} | self._requests.by_class).items()):
            requests.add_metric([name], count)
        yield requests
        now = self._snapshot()
        for name, value, text in (
            (
                "policy_version",
                -1 if now.version is None else now.version,
                "Version that answers; -1 before the first.",
            ),
            ("requests_running", now.running, "Inferences past the gate."),
            ("requests_gated", now.waiting_at_gate, "Inferences that wait for a swap."),
            ("swap_seconds", now.swap_seconds, "Length of the last swap."),
            ("spool_bytes", now.spool_bytes, "Generations on disk, sent ones of the last minutes included."),
            ("spool_unsent_bytes", now.spool_unsent_bytes, "Generations on disk that the log has not taken yet."),
            ("log_available", float(now.log_available), "1 while the log takes generations."),
        ):
            yield GaugeMetricFamily(f"online_rl_{name}", text, value=value)
        yield CounterMetricFamily("online_rl_swaps", "Delivered versions.", value=now.swaps)
        for name, count in now.counters.items():
            yield CounterMetricFamily(f"online_rl_{name}", f"{name.replace('_', ' ')}, total.", value=count)
