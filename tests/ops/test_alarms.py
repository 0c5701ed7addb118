"""What is an alarm, and that it ends."""

import pytest

from online_rl.dashboard.alarms import find_alarms
from online_rl.dashboard.flow import Flow
from online_rl.dashboard.status import PartStatus
from tests.monitoring.exposition import LIMITS, STATUS

NOW = 1000.0
WELL = STATUS.model_copy(update={"learning_frozen": False, "flow": Flow()})


def test_a_service_that_is_well_has_none() -> None:
    assert find_alarms(WELL, LIMITS, NOW) == []


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({"live_version": None}, "No version is live"),
        ({"parts": {"learner": PartStatus(state="running", detail="", heartbeat_at=970.0)}}, "learner is silent"),
        ({"flow": Flow(outbox_waiting=7, outbox_oldest_at=800.0)}, "7 events wait for the log"),
        ({"flow": Flow(last_dead_letter_at=900.0)}, "A message could not be handled"),
        ({"learning_frozen": True}, "Learning is frozen"),
        ({"kl_to_base": 17.0}, "17.00 nats a token from the base"),
        ({"mismatch_mean": 0.13}, "Engine and learner differ by 0.130"),
    ],
)
def test_each_condition_is_said(change: dict[str, object], title: str) -> None:
    (alarm,) = find_alarms(WELL.model_copy(update=change), LIMITS, NOW)
    assert alarm.title == title
    assert alarm.action


def test_a_dead_letter_of_yesterday_is_none() -> None:
    assert find_alarms(WELL.model_copy(update={"flow": Flow(last_dead_letter_at=NOW - 86400)}), LIMITS, NOW) == []


def test_the_critical_come_first() -> None:
    alarms = find_alarms(WELL.model_copy(update={"learning_frozen": True, "live_version": None}), LIMITS, NOW)
    assert [alarm.severity for alarm in alarms] == ["critical", "warning"]
