"""All that `/metrics` can say: every figure known, from a service with a past, joined with what a replica adds."""

import re
from importlib.util import find_spec
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from online_rl.dashboard.measured import Limits, Measured, VersionReward
from online_rl.dashboard.metrics import _UPDATE, join_expositions, write_exposition
from online_rl.dashboard.status import Flow, PartStatus, Status
from serving.metrics import RequestCounts, ServingCollector, Snapshot

STATUS = Status(
    live_version=7, versions_published=9, requests=120, failed_requests=0, feedback_accepted=110,
    generations_stored=118, trajectories_released=105, trajectories_trained=96, trajectories_dropped={"stale": 3},
    backlog=6, drift_events=2, updates=6, kl_to_base=0.4, mismatch_mean=0.03, mismatch_kl=0.002,
    learning_frozen=True, learning_frozen_reason="audit", reward_recent=0.7, reward_earlier=0.6,
    reward_last_minutes=0.71, rewards_last_minutes=40,
    feedback_by_status={"joined": 108}, answers_dropped={"no_feedback": 2}, dead_letters=1,
    flow=Flow(captured=120, last_feedback_at=990.0, outbox_waiting=1, outbox_oldest_at=995.0, last_update_at=980.0,
              feedback_to_weights_s=41.5),
    parts={"learner": PartStatus(state="running", detail="", heartbeat_at=1000.0)}, seconds=60.0,
)  # fmt: skip
MEASURED = Measured(
    update=dict.fromkeys(_UPDATE, 0.25),
    version_rewards=(VersionReward(version=7, rewards=31, mean=0.7), VersionReward(version=6, rewards=30, mean=0.6)),
    versions_by_state={"live": 1, "retired": 6, "rejected": 2},
)
LIMITS = Limits(kl_budget=20.0, probe_tolerance=0.15, max_staleness=8, min_batch=8)


def ours() -> str:
    return write_exposition(STATUS, MEASURED, LIMITS, policy_up=True)


def replica() -> str:
    """What `serving` adds to the engine's own metrics."""
    counters = dict.fromkeys(
        ("generations_captured", "capture_failures", "generations_spooled", "generations_sent", "generations_dropped",
         "generations_refused", "failed_requests"), 0,
    )  # fmt: skip
    now = Snapshot(
        version=7, running=1, waiting_at_gate=0, swap_seconds=0.5, swaps=7, spool_bytes=4096, spool_unsent_bytes=0,
        log_available=True, counters=counters,
    )  # fmt: skip
    requests = RequestCounts()
    for status in (200, 499, 500):
        requests.add(status)
    registry = CollectorRegistry()
    registry.register(ServingCollector(requests, lambda: now))
    return generate_latest(registry).decode()


def service() -> str:
    return join_expositions(ours(), replica())


def sample_names(text: str) -> set[str]:
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def vllm_families() -> set[str]:
    """The families that the installed engine declares, read from its source: starting it takes a minute."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    loggers = Path(spec.origin).parent / "v1" / "metrics" / "loggers.py"
    return set(re.findall(r'name="(vllm:[a-z0-9_]+)"', loggers.read_text()))


def metrics_in(expression: str) -> set[str]:
    """The metric names in a PromQL expression; all that this service has begin with one of two prefixes."""
    return set(re.findall(r"\b(?:online_rl_|vllm:)[a-z0-9_]+", expression))


def exists(name: str) -> bool:
    """Whether `name` is a sample of `/metrics`."""
    if name.startswith("vllm:"):
        family = re.sub(r"_(bucket|sum|count|total)$", "", name)
        return bool({name, family} & vllm_families())
    return name in sample_names(service())
