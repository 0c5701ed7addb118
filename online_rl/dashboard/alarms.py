"""What an operator should look at now: on the page what docs/monitoring/alerts.yml is for Prometheus. Pure.

Only conditions that end by themselves or by what the operator does: a count since the beginning would be an alarm for
ever.
"""

from collections.abc import Iterator

from online_rl.dashboard.alarm import Alarm
from online_rl.dashboard.measured import Limits
from online_rl.dashboard.status import Status

SILENT_S = 20.0
LAG_S = 120.0
RECENT_S = 3600.0
"""How long a dead letter is news."""
NEAR = 0.8
"""Share of a limit from which on it is said."""


def find_alarms(status: Status, limits: Limits, now: float) -> list[Alarm]:
    """The alarms of `status` at `now` (Unix seconds)."""
    found = [*_serving(status, now), *_flow(status, now), *_learner(status, limits)]
    return sorted(found, key=lambda alarm: alarm.severity != "critical")


def _serving(status: Status, now: float) -> Iterator[Alarm]:
    if status.live_version is None and status.parts:
        yield Alarm(
            severity="critical", title="No version is live", about="versions",
            action="Promote a version that was live before.",
        )  # fmt: skip
    for name, part in sorted(status.parts.items()):
        if now - part.heartbeat_at > SILENT_S:
            yield Alarm(
                severity="critical" if name.startswith("policy") else "warning", title=f"{name} is silent",
                action="It is being started again, or hangs: read its log in data_dir/logs.", about="now",
            )  # fmt: skip


def _flow(status: Status, now: float) -> Iterator[Alarm]:
    oldest = status.flow.outbox_oldest_at
    if oldest is not None and now - oldest > LAG_S:
        yield Alarm(
            severity="warning", title=f"{status.flow.outbox_waiting} events wait for the log", about="feedback",
            action="Nothing is lost. See whether the broker answers and the assembler lives.",
        )  # fmt: skip
    letter = status.flow.last_dead_letter_at
    if letter is not None and now - letter < RECENT_S:
        yield Alarm(
            severity="warning", title="A message could not be handled", about="feedback",
            action="online-rl dlq list says why; once the cause is gone, online-rl dlq retry.",
        )  # fmt: skip


def _learner(status: Status, limits: Limits) -> Iterator[Alarm]:
    if status.learning_frozen:
        yield Alarm(
            severity="warning", title="Learning is frozen", about="versions",
            action="What waits grows stale. Resume it when you are done.",
        )  # fmt: skip
    if status.kl_to_base is not None and status.kl_to_base > NEAR * limits.kl_budget:
        yield Alarm(
            severity="warning", title=f"{status.kl_to_base:.2f} nats a token from the base", about="learner",
            action=f"Beyond {limits.kl_budget:g} versions are rejected. Raise learner.kl_coefficient.",
        )  # fmt: skip
    if status.mismatch_mean is not None and status.mismatch_mean > NEAR * limits.probe_tolerance:
        yield Alarm(
            severity="warning", title=f"Engine and learner differ by {status.mismatch_mean:.3f}", about="learner",
            action=f"Above {limits.probe_tolerance:g} deliveries are refused. Look for a changed engine or dtype.",
        )  # fmt: skip
