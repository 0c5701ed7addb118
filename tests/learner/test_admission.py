"""Each reason to refuse a trajectory, and that a good one passes."""

from dataclasses import replace

import pytest

from feedback.schemas import Trajectory
from online_rl.admission import AdmissionRules, find_refusal
from online_rl.drop_reasons import Reason
from online_rl.objectives import Needs
from serving.schemas import VersionSpan
from tests.learner.tiny import VOCABULARY, make_trajectory

RULES = AdmissionRules(
    max_staleness=2,
    max_tokens=100,
    vocabulary=VOCABULARY,
    objective="sao",
    needs=Needs(behavior_logprobs=True, versions=True, value_model=True),
)


def spans(version, trajectory=None):
    return (VersionSpan(start=0, end=sum((trajectory or make_trajectory(1)).action_mask), version=version),)


def test_a_good_one_passes_up_to_the_limit():
    trajectory = make_trajectory(1, spans=spans(3))
    assert find_refusal(trajectory, RULES, current_version=5) is None
    refusal = find_refusal(trajectory, RULES, current_version=6)
    assert refusal is not None
    assert refusal.reason is Reason.STALE
    assert "version 3" in refusal.detail


def test_staleness_is_that_of_the_oldest_span():
    mixed = (
        VersionSpan(start=0, end=1, version=1),
        VersionSpan(start=1, end=sum(make_trajectory(1).action_mask), version=9),
    )
    refusal = find_refusal(make_trajectory(1, spans=mixed), RULES, current_version=9)
    assert refusal is not None
    assert refusal.reason is Reason.STALE


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"behavior_logprobs": None}, Reason.MISSING_LOGPROBS, "behavior_logprobs"),
        ({"spans": None}, Reason.MISSING_VERSIONS, "spans"),
        ({"greedy": True}, Reason.GREEDY, "greedy"),
        ({"structured": True}, Reason.STRUCTURED, "structured"),
    ],
)
def test_refusals_name_the_field(changes, reason, field):
    refusal = find_refusal(make_trajectory(1, **changes), RULES, current_version=0)
    assert refusal is not None
    assert refusal.reason is reason
    assert field in refusal.detail


def test_what_validation_would_have_stopped_is_refused_too():
    good = dict(make_trajectory(1))
    for changes, reason in (
        ({"reward": float("nan")}, Reason.NON_FINITE),
        ({"behavior_logprobs": (float("nan"),) * len(good["behavior_logprobs"])}, Reason.NON_FINITE),
        ({"token_ids": (VOCABULARY, *good["token_ids"][1:])}, Reason.UNKNOWN_TOKEN),
    ):
        refusal = find_refusal(Trajectory.model_construct(**(good | changes)), RULES, current_version=0)
        assert refusal is not None
        assert refusal.reason is reason


def test_too_long():
    rules = replace(RULES, max_tokens=8)
    refusal = find_refusal(make_trajectory(1), rules, current_version=0)
    assert refusal is not None
    assert refusal.reason is Reason.TOO_LONG


def test_rejected_versions_never_train():
    trajectory = make_trajectory(1, spans=spans(4))
    refusal = find_refusal(trajectory, RULES, current_version=5, rejected_versions={4})
    assert refusal is not None
    assert refusal.reason is Reason.REJECTED_VERSION


def test_configuration_admits():
    rules = replace(RULES, objective="asympo", needs=Needs(groups=True), train_greedy=True, train_structured=True)
    trajectory = make_trajectory(1, greedy=True, structured=True, behavior_logprobs=None, spans=None)
    assert find_refusal(trajectory, rules, current_version=50) is None
