"""The exposition: valid for a Prometheus parser, honest about what is unknown, joined without double families."""

from prometheus_client.parser import text_string_to_metric_families

from online_rl.dashboard.measured import Measured
from online_rl.dashboard.metrics import join_expositions, write_exposition
from tests.monitoring.exposition import LIMITS, MEASURED, STATUS, ours

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
    found = samples(ours())
    assert found["online_rl_trajectories_trained_total"] == 96
    assert found["online_rl_live_version"] == 7
    assert found["online_rl_learning_frozen"] == 1
    assert found["online_rl_trajectories_dropped_total[('reason', 'stale')]"] == 3
    assert found["online_rl_version_reward_mean[('version', '7')]"] == 0.7
    assert found["online_rl_feedback_to_weights_seconds"] == 41.5
    assert found["online_rl_part_heartbeat_timestamp_seconds[('part', 'learner')]"] == 1000.0


def test_an_unknown_figure_is_left_out() -> None:
    status = STATUS.model_copy(update={"kl_to_base": None})
    text = write_exposition(status, Measured(), LIMITS, policy_up=True)
    assert "online_rl_kl_to_base" not in text
    assert "online_rl_mask_ratio" not in text


def test_what_has_never_happened_is_0_so_that_the_first_time_is_an_increase() -> None:
    found = samples(write_exposition(STATUS, Measured(), LIMITS, policy_up=True))
    assert found["online_rl_trajectories_dropped_total[('reason', 'diverged')]"] == 0
    assert found["online_rl_versions[('state', 'rejected')]"] == 0


def test_a_policy_that_does_not_answer_shows() -> None:
    assert samples(write_exposition(STATUS, MEASURED, LIMITS, policy_up=False))["online_rl_policy_up"] == 0


def test_a_family_stands_once_in_the_joined_text() -> None:
    joined = join_expositions(ours(), THEIRS)
    names = [family.name for family in text_string_to_metric_families(joined)]
    assert len(names) == len(set(names))
    assert "# EOF" not in joined
    found = samples(joined)
    assert found["vllm:num_requests_running[('engine', '0')]"] == 2.0
    assert found["online_rl_live_version[('replica', 'a')]"] == 7.0
    assert found["online_rl_updates_total"] == 6
