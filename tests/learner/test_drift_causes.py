"""Users who changed their mind, one cohort that did, and other users are told apart; chance is none of them."""

import numpy as np
import pytest

from benchmarks import drift_streams as streams
from benchmarks.drift_streams import Stream
from online_rl.attribution import attribute
from online_rl.change_points import WINDOW, find_mix_change
from online_rl.cohorts import MAX_VALUES, find_cohorts, find_prompt, name_length
from online_rl.detectors import DetectorMissing, make_detector
from online_rl.drift import DriftMonitor
from online_rl.drift_events import Recovery, Shift
from online_rl.drift_state import DriftState
from online_rl.prompt_clusters import REFERENCE, PromptClusters
from online_rl.settings import DriftSettings
from tests.learner.tiny import make_trajectory


def play(stream: Stream, monitor: DriftMonitor | None = None, start: int = 0, **metrics) -> list[Shift | Recovery]:
    monitor = monitor or DriftMonitor(DriftSettings())
    return [
        event
        for at, one in enumerate(stream.rated[start:], start)
        for event in monitor.observe(
            one.reward,
            one.residual,
            float(at),
            cohorts={"key": "one", "tag": one.tag, "length": name_length(len(one.prompt))},
            prompt=one.prompt,
        )
    ]


def shifts(events) -> list[Shift]:
    return [event for event in events if isinstance(event, Shift)]


@pytest.mark.parametrize("seed", range(2))
def test_all_users_who_change_their_mind_are_one_shift_of_taste_and_no_cohort_is_named(seed):
    (shift,) = shifts(play(streams.step(np.random.default_rng(seed), 600, 20)))
    assert (shift.cause, shift.cohort, shift.is_taste_of_all) == ("taste", "", True)


@pytest.mark.parametrize("seed", range(2))
def test_one_cohort_that_changes_its_mind_is_named_and_calls_for_no_reaction(seed):
    found = shifts(play(streams.cohort_step(np.random.default_rng(seed), 1500, 6)))
    stream = streams.cohort_step(np.random.default_rng(seed), 1500, 6)
    assert [(shift.cause, shift.cohort, shift.is_taste_of_all) for shift in found] == [
        ("taste", f"tag={stream.cohort}", False)
    ]
    assert found[0].evidence["rest_before"] - found[0].evidence["rest_after"] < 0.1


@pytest.mark.parametrize("seed", range(2))
def test_half_of_the_traffic_is_not_all_of_it(seed):
    found = shifts(play(streams.cohort_step(np.random.default_rng(seed), 800, 2)))
    assert found
    assert not any(shift.is_taste_of_all for shift in found)


@pytest.mark.parametrize("make", [streams.other_prompts, streams.other_users])
@pytest.mark.parametrize("seed", range(2))
def test_other_prompts_and_users_are_named_as_such(make, seed):
    found = shifts(play(make(np.random.default_rng(seed), 700, 5)))
    assert {shift.cause for shift in found} == {"prompt_mix"}
    assert not any(shift.is_taste_of_all for shift in found)


def test_a_mix_that_changes_and_pays_the_same_is_named_too():
    labels = ["a"] * 150 + ["b"] * 50
    rng = np.random.default_rng(0)
    monitor = DriftMonitor(DriftSettings())
    events = [
        event
        for at, label in enumerate(labels)
        for event in monitor.observe(float(rng.random() < 0.7), None, float(at), cohorts={"key": label})
    ]
    (shift,) = events
    assert isinstance(shift, Shift)
    assert (shift.stream, shift.cause) == ("mix", "prompt_mix")
    assert shift.cohort in ("key=a", "key=b")
    assert abs(shift.evidence["share_after"] - shift.evidence["share_before"]) > 0.3


def test_what_the_mix_explains_is_computed_by_hand():
    """Before, 3 of 4 are of a, who rate 1, and b rate 0; behind, 1 of 4: all of the fall of 0.5 is the mix."""
    rewards, labels = (
        [1.0, 1.0, 1.0, 0.0] * 16 + [1.0, 0.0, 0.0, 0.0] * 8,
        ["a", "a", "a", "b"] * 16 + ["a", "b", "b", "b"] * 8,
    )
    cause = attribute(rewards, 64, {"key": labels})
    assert cause.mix_share == pytest.approx(1.0)
    assert cause.is_mix
    # The same users, who rate otherwise.
    same = attribute(rewards, 64, {"key": ["a", "b"] * 48})
    assert same.mix_share == pytest.approx(0.0)
    assert not same.is_mix
    # Of a the first half fell to 0, and b stayed.
    split = attribute([1.0] * 64 + [0.0, 1.0] * 32, 64, {"key": ["a", "b"] * 64})
    assert split.stayed_share == 0.5
    assert split.is_of_some


def test_a_metric_that_falls_is_named_where_the_reward_is_made_of_several():
    rng = np.random.default_rng(1)
    monitor = DriftMonitor(DriftSettings())
    events: list[Shift | Recovery] = []
    for at in range(200):
        short, kind = float(rng.random() < (0.9 if at < 120 else 0.1)), float(rng.random() < 0.9)
        events += monitor.observe((short + 9 * kind) / 10, None, float(at), metrics={"short": short, "kind": kind})
    (shift,) = shifts(events)
    assert (shift.stream, shift.cohort, shift.cause) == ("metric:short", "", "taste")
    assert not shift.is_taste_of_all


def test_more_tests_ask_for_more_evidence():
    """S tests are each S times rarer to be wrong: with many cohorts the threshold is higher."""

    def threshold(cohorts: int) -> float:
        found = shifts(play(streams.reversal(np.random.default_rng(0), 600, cohorts)))
        return next(shift for shift in found if shift.is_taste_of_all).evidence["threshold"]

    assert 4.25 < threshold(0) < threshold(20)


@pytest.mark.parametrize("make", [streams.still, streams.learning])
@pytest.mark.parametrize("cohorts", [0, 20])
def test_neither_chance_nor_learning_nor_its_dips_is_a_shift(make, cohorts):
    """At most one false alarm in 10,000 rewards, over all cohorts together; `benchmarks.drift` has the figures."""
    found = sum(len(shifts(play(make(np.random.default_rng(seed), 800, cohorts)))) for seed in range(2))
    assert found <= 1


def test_a_reversal_is_found_within_16():
    """As in the demo, from 0.9 to 0.05; in the median of these."""
    delays = []
    for seed in range(5):
        stream = streams.reversal(np.random.default_rng(seed), 600, 0)
        found = [shift for shift in shifts(play(stream)) if shift.trajectories > 300]
        assert len(found) == 1
        delays.append(found[0].trajectories - 300)
    assert sorted(delays)[2] <= 16


def test_memory_is_bounded_with_many_cohorts_and_names():
    monitor = DriftMonitor(DriftSettings(max_cohorts=16))
    for at in range(1500):
        tags = {f"tag.{at % 40}": str(at % 7), "key": str(at % 30), "tag.id": str(at)}
        monitor.observe(float(at % 2), None, float(at), cohorts=tags, metrics={"a": 0.5, "b": 1.0}, prompt=[1, 2, at])
    state = monitor.state
    assert len(state.rewards) == WINDOW
    assert len(state.labels) <= 12
    assert all(len(found) == WINDOW for found in state.labels.values())
    assert len(state.streams) <= 16 + 8
    assert all(len(one.entries) <= WINDOW for one in state.streams)
    assert not any(one.cohort.startswith("tag.id=") for one in state.streams)
    assert len(state.prompts.waiting) < REFERENCE


@pytest.mark.parametrize("cut", [100, 300, 420, 700])
def test_resuming_with_cohorts_changes_nothing(cut):
    stream = streams.other_prompts(np.random.default_rng(5), 800, 5)
    whole = play(stream)
    assert whole
    monitor = DriftMonitor(DriftSettings())
    first = play(Stream(stream.rated[:cut]), monitor)
    resumed = DriftMonitor(DriftSettings(), DriftState.model_validate_json(monitor.state.model_dump_json()))
    assert first + play(stream, resumed, start=cut) == whole


def test_the_state_of_an_older_checkpoint_is_read():
    """Which knew all traffic only."""
    old = (
        '{"seen": 40, "rewards": [1.0, 0.0], "residuals": [null, 0.5], "times": [1.0, 2.0], "fresh": 2, "open_shift":'
        ' {"stream": "reward", "trajectories": 30, "before": 0.8, "changed_index": 20, "changed_at": 0.5}}'
    )
    monitor = DriftMonitor(DriftSettings(), DriftState.model_validate_json(old))
    monitor.observe(1.0, 0.1, 3.0, cohorts={"key": "a"}, prompt=[1, 2, 3])
    assert monitor.state.seen == 41
    assert monitor.state.open_shift is not None
    assert monitor.state.labels == {"key": ("", "", "a")}


def test_a_mix_of_unchanged_shares_is_no_change():
    rng = np.random.default_rng(0)
    labels = [str(label) for label in rng.integers(0, 6, WINDOW)]
    change = find_mix_change(labels)
    assert change is not None
    assert change.standard_errors < 4.0
    moved = find_mix_change(labels[:200] + ["new"] * 40)
    assert moved is not None
    assert moved.label == "new"
    assert abs(moved.since - 40) <= 3
    assert moved.share_after > 0.9
    assert find_mix_change(["a"] * 100) is None


def test_prompts_of_a_topic_share_a_cluster_and_strangers_have_none():
    rng = np.random.default_rng(0)
    template = list(range(30))

    def prompt(topic: int) -> list[int]:
        return template + rng.choice(np.arange(1000 * topic, 1000 * topic + 12), 8, replace=False).tolist()

    clusters = PromptClusters()
    assert clusters.label(prompt(1)) == ""
    for number in range(REFERENCE):
        clusters = clusters.learn(prompt(1 + number % 3), 3)
    labels = {topic: {clusters.label(prompt(topic)) for _ in range(20)} - {"1.other"} for topic in (1, 2, 3)}
    assert all(len(found) == 1 for found in labels.values())
    assert len(set.union(*labels.values())) == 3
    assert sum(clusters.label(prompt(9)) == "1.other" for _ in range(20)) >= 15
    assert clusters.learn(prompt(1), 3) is clusters


def test_the_cohorts_of_a_trajectory():
    trajectory = make_trajectory(1, tags={"plan": "pro"}, api_key_id="k")
    cohorts = find_cohorts(trajectory)
    assert cohorts["key"] == "k"
    assert cohorts["tag.plan"] == "pro"
    assert cohorts["length"] == name_length(len(find_prompt(trajectory)))
    assert (name_length(32), name_length(63), name_length(64)) == ("32-63", "32-63", "64-127")
    assert MAX_VALUES < WINDOW


@pytest.mark.parametrize("name", ["scan", "adwin", "page_hinkley"])
def test_each_detector_finds_a_fall_and_no_rise(name):
    if name != "scan":
        pytest.importorskip("river")
    detect = make_detector(name, 0.1)
    rng = np.random.default_rng(0)
    low, high = (rng.random(100) < 0.1).astype(float).tolist(), (rng.random(100) < 0.9).astype(float).tolist()
    fall = detect([*high, *low], 5.0)
    assert fall is not None
    assert 90 <= fall.since <= 110
    assert detect([*low, *high], 5.0) is None


def test_a_detector_that_is_not_installed_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "river", None)
    with pytest.raises(DetectorMissing, match="river"):
        make_detector("adwin", 0.1)
