"""The service's own figures in the Prometheus text format, in front of those of the policy application."""

import re
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from online_rl.dashboard.measured import Limits, Measured
from online_rl.dashboard.status import Status
from online_rl.drop_reasons import Reason
from online_rl.schemas import VersionState

_FAMILY = re.compile(r"^# (?:HELP|TYPE) (\S+)")

_COUNTERS = {
    "feedback_accepted": "Feedback stored.",
    "generations_stored": "Generations stored.",
    "trajectories_released": "Trajectories released to the learner.",
    "trajectories_trained": "Trajectories trained on.",
    "updates": "Policy updates.",
    "drift_events": "Changes of taste detected.",
    "versions_published": "Policy versions published, the base not counted.",
    "dead_letters": "Messages that could not be handled.",
}
_GAUGES = {
    "live_version": "The policy version that answers.",
    "backlog": "Trajectories released, neither trained on nor dropped.",
    "kl_to_base": "KL divergence of the live version from the base model, nats a token.",
    "mismatch_mean": "Mean absolute difference of serving and learner log-probabilities under equal weights.",
    "mismatch_kl": "KL divergence of serving and learner under equal weights, nats a token.",
    "reward_recent": "Mean of the last 32 rewards.",
}
# field of `Flow` → name, help
_FLOW = {
    "last_feedback_at": ("last_feedback_timestamp_seconds", "When the newest feedback was stored."),
    "outbox_waiting": ("outbox_waiting", "Events committed and not on the log yet."),
    "outbox_oldest_at": ("outbox_oldest_timestamp_seconds", "When the oldest event that waits was committed."),
    "last_update_at": ("last_update_timestamp_seconds", "When the newest policy update was recorded."),
    "feedback_to_weights_s": (
        "feedback_to_weights_seconds",
        "From the feedback of the last update in the live version, its mean, to the version going live.",
    ),
}
# figure of an update → name, help
_UPDATE = {
    "policy/mask_ratio": ("mask_ratio", "Share of the last update's tokens outside the trust region."),
    "policy/ratio_max": ("importance_ratio_max", "Largest importance ratio of the last update."),
    "policy/behavior_kl": ("behavior_kl", "KL divergence of what sampled from the policy trained, nats a token."),
    "policy/entropy": ("entropy", "Entropy of the policy in the last update, nats a token."),
    "policy/grad_norm": ("policy_gradient_norm", "Gradient norm of the policy before clipping, last update."),
    "value/grad_norm": ("value_gradient_norm", "Gradient norm of the value model before clipping, last update."),
    "value/explained_variance": ("explained_variance", "Explained variance of the returns by the value model."),
    "staleness/mean": ("staleness_mean", "Mean staleness of the last update's trajectories, in versions."),
    "staleness/max": ("staleness_max", "Largest staleness of the last update's trajectories, in versions."),
    "guard/streak": ("guard_streak", "Updates in a row with a figure beyond its bound."),
}
_LIMITS = {
    "kl_budget": "Setting learner.kl_budget: versions further from the base are not published, nats a token.",
    "probe_tolerance": "Setting swap.probe_tolerance: the mismatch above which a delivery is refused.",
    "min_batch": "Setting learner.min_batch: trajectories that an update needs.",
    "max_staleness": "Setting learner.max_staleness: what is older is dropped, in versions.",
}


class _StatusCollector(Collector):
    def __init__(self, status: Status, measured: Measured, limits: Limits, policy_up: bool) -> None:
        self._status = status
        self._measured = measured
        self._limits = limits
        self._policy_up = policy_up

    def collect(self) -> Iterable[Metric]:
        values = self._status.model_dump()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"online_rl_{name}", text, value=values[name])
        known = {name: (values[name], text) for name, text in _GAUGES.items()}
        known |= {name: (values["flow"][field], text) for field, (name, text) in _FLOW.items()}
        known |= {name: (self._measured.update.get(figure), text) for figure, (name, text) in _UPDATE.items()}
        known |= {name: (getattr(self._limits, name), text) for name, text in _LIMITS.items()}
        known["learning_frozen"] = (self._status.learning_frozen, "1 while an operator has frozen learning.")
        known["policy_up"] = (self._policy_up, "1 when the policy answered.")
        for name, (value, text) in known.items():
            if value is not None:
                yield GaugeMetricFamily(f"online_rl_{name}", text, value=float(value))
        yield _labelled(
            CounterMetricFamily("online_rl_trajectories_dropped", "Not trained on, by reason.", labels=["reason"]),
            # Every reason, so that the first one counts as an increase.
            {reason.value: 0 for reason in Reason} | self._status.trajectories_dropped,
        )
        yield _labelled(
            CounterMetricFamily("online_rl_answers_dropped", "Answers not made trajectories.", labels=["reason"]),
            self._status.answers_dropped,
        )
        yield _labelled(
            GaugeMetricFamily("online_rl_feedback", "Feedback by what became of it.", labels=["status"]),
            self._status.feedback_by_status,
        )
        # Every state, so that an alert sees the first version that gets into it.
        states = {state.value: 0 for state in VersionState} | self._measured.versions_by_state
        yield _labelled(GaugeMetricFamily("online_rl_versions", "Versions by state.", labels=["state"]), states)
        yield _labelled(
            GaugeMetricFamily("online_rl_version_reward_mean", "Of the last 1000 rewards.", labels=["version"]),
            {str(one.version): one.mean for one in self._measured.version_rewards},
        )
        yield _labelled(
            GaugeMetricFamily("online_rl_version_rewards", "Of the last 1000 rewards.", labels=["version"]),
            {str(one.version): one.rewards for one in self._measured.version_rewards},
        )
        yield _labelled(
            GaugeMetricFamily(
                "online_rl_part_heartbeat_timestamp_seconds", "When the part was last heard.", labels=["part"]
            ),
            {name: part.heartbeat_at for name, part in self._status.parts.items()},
        )


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> CounterMetricFamily | GaugeMetricFamily:
    for label, value in sorted(values.items()):
        family.add_metric([label], value)
    return family


def write_exposition(status: Status, measured: Measured, limits: Limits, *, policy_up: bool) -> str:
    """Our figures, each family with HELP and TYPE. A figure that is not known is left out, never written as 0."""
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status, measured, limits, policy_up))
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
