"""The exposition: valid for a Prometheus parser, honest about what is unknown, joined without double families."""

from prometheus_client.parser import text_string_to_metric_families

from online_rl.dashboard.metrics import join_expositions, write_exposition
from online_rl.dashboard.status import PartStatus, Status

STATUS = Status(
    live_version=7, versions_published=9, requests=120, failed_requests=0, feedback_accepted=110,
    generations_stored=118, trajectories_released=105, trajectories_trained=96, trajectories_dropped={"stale": 3},
    backlog=6, drift_events=2, updates=6, kl_to_base=None, mismatch_mean=0.03, mismatch_kl=0.002,
    learning_frozen=True, learning_frozen_reason="audit", reward_recent=0.7, reward_earlier=0.6,
    reward_last_minutes=0.71, rewards_last_minutes=40,
    feedback_by_status={"joined": 108}, answers_dropped={},
    parts={"learner": PartStatus(state="running", detail="", heartbeat_at=1000.0)}, seconds=60.0,
)  # fmt: skip

THEIRS = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 2.0
# HELP online_rl_live_version Ours too
# TYPE online_rl_live_version gauge
online_rl_live_version{replica="a"} 7.0
# EOF
"""


def samples(text: str) -> dict[str, float]:
    return {
        sample.name + str(sorted(sample.labels.items()) or ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_count_of_the_status_is_exposed() -> None:
    found = samples(write_exposition(STATUS, policy_up=True))
    assert found["online_rl_trajectories_trained_total"] == 96
    assert found["online_rl_live_version"] == 7
    assert found["online_rl_learning_frozen"] == 1
    assert found["online_rl_trajectories_dropped_total[('reason', 'stale')]"] == 3
    assert found["online_rl_part_heartbeat_timestamp_seconds[('part', 'learner')]"] == 1000.0


def test_an_unknown_figure_is_left_out() -> None:
    assert "online_rl_kl_to_base" not in write_exposition(STATUS, policy_up=True)


def test_a_policy_that_does_not_answer_shows() -> None:
    assert samples(write_exposition(STATUS, policy_up=False))["online_rl_policy_up"] == 0


def test_a_family_stands_once_in_the_joined_text() -> None:
    joined = join_expositions(write_exposition(STATUS, policy_up=True), THEIRS)
    names = [family.name for family in text_string_to_metric_families(joined)]
    assert len(names) == len(set(names))
    assert "# EOF" not in joined
    found = samples(joined)
    assert found["vllm:num_requests_running[('engine', '0')]"] == 2.0
    assert found["online_rl_live_version[('replica', 'a')]"] == 7.0
    assert found["online_rl_updates_total"] == 6
