"""The service's own figures in the Prometheus text format, in front of those of the policy application."""

import re
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from online_rl.dashboard.status import Status

_FAMILY = re.compile(r"^# (?:HELP|TYPE) (\S+)")

_COUNTERS = {
    "feedback_accepted": "Feedback stored.",
    "generations_stored": "Generations stored.",
    "trajectories_released": "Trajectories released to the learner.",
    "trajectories_trained": "Trajectories trained on.",
    "updates": "Policy updates.",
    "drift_events": "Changes of taste detected.",
    "versions_published": "Policy versions published, the base not counted.",
}
_GAUGES = {
    "live_version": "The policy version that answers.",
    "backlog": "Trajectories released, neither trained on nor dropped.",
    "kl_to_base": "KL divergence of the live version from the base model, nats a token.",
    "mismatch_mean": "Mean absolute difference of serving and learner log-probabilities under equal weights.",
    "mismatch_kl": "KL divergence of serving and learner under equal weights, nats a token.",
    "reward_recent": "Mean of the last 32 rewards.",
}


class _StatusCollector(Collector):
    def __init__(self, status: Status, policy_up: bool) -> None:
        self._status = status
        self._policy_up = policy_up

    def collect(self) -> Iterable[Metric]:
        values = self._status.model_dump()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"online_rl_{name}", text, value=values[name])
        for name, text in _GAUGES.items():
            if values[name] is not None:
                yield GaugeMetricFamily(f"online_rl_{name}", text, value=values[name])
        frozen = float(self._status.learning_frozen)
        yield GaugeMetricFamily("online_rl_learning_frozen", "1 while an operator has frozen learning.", value=frozen)
        yield GaugeMetricFamily("online_rl_policy_up", "1 when the policy answered.", value=float(self._policy_up))
        dropped = CounterMetricFamily("online_rl_trajectories_dropped", "Not trained on, by reason.", labels=["reason"])
        for reason, number in sorted(self._status.trajectories_dropped.items()):
            dropped.add_metric([reason], number)
        yield dropped
        heartbeat = GaugeMetricFamily(
            "online_rl_part_heartbeat_timestamp_seconds", "When the part was last heard.", labels=["part"]
        )
        for name, part in sorted(self._status.parts.items()):
            heartbeat.add_metric([name], part.heartbeat_at)
        yield heartbeat


def write_exposition(status: Status, *, policy_up: bool) -> str:
    """Our figures, each family with HELP and TYPE. A figure that is not known is left out, never written as 0."""
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status, policy_up))
    return generate_latest(registry).decode()


def join_expositions(ours: str, theirs: str) -> str:
    """Both texts as one valid exposition: a family may stand in it once, so one that `theirs` has is theirs."""
    taken = {match[1] for line in theirs.splitlines() if (match := _FAMILY.match(line))}
    kept: list[str] = []
    skipping = False
    for line in ours.splitlines():
        if match := _FAMILY.match(line):
            skipping = match[1] in taken
        if not skipping:
            kept.append(line)
    kept += [line for line in theirs.splitlines() if line != "# EOF"]
    return "\n".join(kept) + "\n"
