"""What each experiment adds to the shared parts: its plan, its figures and its claims."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.papers import __main__ as command
from benchmarks.papers import ablations, asympo, drift, response, stability, throughput, training
from benchmarks.papers.experiment import Options, find_differences, kept_shares, summarise
from benchmarks.papers.lags import Lag
from benchmarks.papers.runs import Job, Row
from benchmarks.papers.statistics import Claim
from benchmarks.papers.tasks import SORTING
from benchmarks.papers.training import Course, Setup, Watcher, make_settings, train
from feedback.schemas import Trajectory
from online_rl.objectives import OBJECTIVES
from online_rl.settings import LearnerSettings
from online_rl.trainer import Counters
from serving.schemas import VersionSpan

FULL = Options(quick=False, seeds=5)
QUICK = Options(quick=True, seeds=2)


def find_claim(claims: list[Claim], text: str) -> Claim:
    (found,) = [claim for claim in claims if claim.claim == text]
    return found


def make_row(objective: str, seed: int, **figures: object) -> Row:
    base = {"final_reward": 0.9, "best_reward": 0.95, "outcome": "stable", "mean_reward": 0.8}
    return {"objective": objective, "seed": seed, **base, **figures}


def test_stability_runs_all_objectives_for_1000_updates_and_5_seeds() -> None:
    jobs = stability.plan(FULL)
    assert {job.variant for job in jobs} == set(stability.OBJECTIVES) == OBJECTIVES.keys() - {"ema"}
    assert {(job.updates, job.seed) for job in jobs} == {(1000, seed) for seed in range(5)}


@pytest.mark.parametrize("name", ["stability", "drift", "asympo", "response"])
def test_every_set_up_is_one_that_the_learner_knows(name: str) -> None:
    for job in command.EXPERIMENTS[name].plan(QUICK):
        make_settings(job.setup, 0)


def test_ablations_change_one_thing_at_a_time() -> None:
    setups = {job.variant: job.setup for job in ablations.plan(Options(quick=True, seeds=1))}
    default = setups.pop(ablations.DEFAULT)
    for setup in setups.values():
        assert (setup.objective, setup.task, setup.lag) == (default.objective, default.task, default.lag)
        assert setup.settings or setup.pretraining


def test_a_setting_that_the_learner_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"learner\.no_such_setting"):
        make_settings(Setup("sao", settings={"no_such_setting": 1}), 0)
    with pytest.raises(ValueError, match="objective 'nothing' is not one of sao"):
        _ = Setup("nothing").group_size


def test_options_choose_and_change(tmp_path: Path) -> None:
    options = Options(
        quick=True, seeds=2, objectives=("sao", "gpg"), updates=7, task="sorting", lag=Lag("constant", 3),
        settings={"learning_rate": 0.5},
    )  # fmt: skip
    jobs = stability.plan(options)
    assert [(job.variant, job.seed) for job in jobs] == [("sao", 0), ("gpg", 0), ("sao", 1), ("gpg", 1)]
    assert {(job.updates, job.setup.task, job.setup.lag) for job in jobs} == {(7, "sorting", Lag("constant", 3))}
    assert make_settings(jobs[0].setup, 3).learning_rate == 0.5
    with pytest.raises(ValueError, match="no variant nothing"):
        stability.plan(Options(quick=True, seeds=1, objectives=("nothing",)))


@pytest.mark.parametrize("name", command.EXPERIMENTS)
def test_variants_can_be_named_on_the_command_line(name: str) -> None:
    assert not [job.variant for job in command.EXPERIMENTS[name].plan(FULL) if "," in job.variant]


def test_claims_follow_the_rows() -> None:
    """The same rows with the parts of two objectives exchanged turn the verdicts round."""
    fallen = [make_row("naive", seed, final_reward=0.1 + 0.01 * seed, outcome="collapsed") for seed in range(3)]
    steady = [make_row("sao", seed, final_reward=0.9 + 0.01 * seed) for seed in range(3)]
    claims = stability.judge([*fallen, *steady])
    assert find_claim(claims, "naive collapses under lag").held is True
    assert find_claim(claims, "sao is stable under lag").held is True
    assert find_claim(claims, "gpg collapses under lag").held is None
    exchange = {"naive": "sao", "sao": "naive"}
    claims = stability.judge([{**row, "objective": exchange[row["objective"]]} for row in [*fallen, *steady]])
    assert find_claim(claims, "naive collapses under lag").held is False
    assert find_claim(claims, "sao is stable under lag").held is False


def test_a_run_that_did_not_learn_says_nothing_of_collapse() -> None:
    rows = [make_row("naive", seed, final_reward=0.1, outcome="did_not_learn") for seed in range(3)]
    assert kept_shares(rows, "naive") == []
    assert find_claim(stability.judge(rows), "naive collapses under lag").held is None


def test_differences_pair_the_seeds() -> None:
    rows = [make_row("a", 0, x=5.0), make_row("a", 1, x=7.0), make_row("b", 1, x=4.0), make_row("b", 2, x=0.0)]
    assert find_differences(rows, "a", "b", "x") == [3.0]


def test_a_summary_by_hand() -> None:
    course = Course(start_reward=0.25, rewards=[[0.0, 1.0]] * 50 + [[1.0, 1.0]] * 50, metrics=[{"m": 2.0}, {}])
    row = summarise(course)
    assert (row["start_reward"], row["final_reward"], row["best_reward"]) == (0.25, 1.0, 1.0)
    assert (row["mean_reward"], row["outcome"], row["collapse_step"]) == (0.75, "stable", None)
    assert row["curve"] == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert course.average("m") == 2.0
    assert course.average("other") is None


def test_recovery_from_a_switch_by_hand() -> None:
    # Level 1 before. After: 10 zeros, then ones: the last 32 rewards hold at most 3 zeros (0.90625) from reward 39 on.
    found = drift.measure_switches([[1.0] * 200, [0.0] * 10 + [1.0] * 90])
    assert found["recovered_after"] == [39]
    assert (found["trajectories_to_recover"], found["unrecovered"], found["regret"]) == (39, 0, 10.0)


def test_a_level_that_was_never_reached_again_stays_the_measure() -> None:
    found = drift.measure_switches([[1.0] * 200, [0.0] * 100, [0.0] * 60])
    assert found["recovered_after"] == [None, None]
    assert (found["trajectories_to_recover"], found["unrecovered"], found["regret"]) == (80, 2, 80.0)


def test_the_response_variants_differ_in_the_response_alone() -> None:
    setups = {job.variant: job.setup for job in response.plan(QUICK)}
    for with_it, without in [
        (response.WITH, response.WITHOUT),
        (response.STEADY_WITH, response.STEADY_WITHOUT),
    ]:
        assert setups[with_it].response is True
        assert replace(setups[with_it], response=False) == setups[without]
    assert len(setups[response.STEADY_WITH].tastes) == 1


@pytest.mark.parametrize(("ratio", "held"), [(0.5, True), (1.5, False)])
def test_the_response_is_judged_by_the_ratio_of_recoveries(ratio: float, held: bool) -> None:
    rows = [
        make_row(variant, seed, trajectories_to_recover=300 * share + seed, regret=100 * share + seed)
        for variant, share in [(response.WITH, ratio), (response.WITHOUT, 1.0), (response.CONSTANT, 1.0)]
        for seed in range(3)
    ]
    text = f"With the response a switch is followed in fewer trajectories than with {response.WITHOUT}"
    found = find_claim(response.judge(rows), text)
    assert found.held is held
    assert found.estimate == pytest.approx(ratio, abs=0.01)


def test_a_shift_is_found_and_reacted_to_in_training() -> None:
    course = Course(start_reward=0.0)
    trainer = FakeTrainer()
    watcher = Watcher(trainer, reacts=True)  # pyright: ignore[reportArgumentType]
    for reward in (1.0,) * 6 + (0.0,) * 4:
        watcher.observe([make_trajectory(reward, 0)] * 16, course)
    assert [shift.before for shift in course.shifts] == [1.0]
    assert [reaction.kept for reaction in course.reactions] == [0.0] == trainer.taken_back
    assert watcher.responder.value_updates == 4


class FakeTrainer:
    """What a watcher needs of a trainer."""

    def __init__(self) -> None:
        self.settings = LearnerSettings()
        self.counters = Counters()
        self.residuals = [0.0] * 16
        self.taken_back: list[float] = []

    def take_back(self, kept: float) -> None:
        self.taken_back.append(kept)

    def forget_moments(self) -> None: ...

    def restart_schedule(self) -> None: ...


def make_trajectory(reward: float, version: int) -> Trajectory:
    return Trajectory(
        trajectory_id=f"{reward}-{version}",
        episode_id="e",
        inference_ids=("i",),
        token_ids=(10, 12, 5, 13, 5, 11),
        action_mask=(0, 0, 0, 0, 1, 1),
        behavior_logprobs=(-0.123456789, -0.987654321),
        spans=(VersionSpan(start=0, end=2, version=version),),
        reward=reward,
        group_id="g",
        group_size=4,
        generated_at=0.0,
        rated_at=0.0,
        released_at=0.0,
    )


def test_the_negative_side_by_staleness(policy_folder: Path) -> None:
    """Rewards 1, 1, 1, 0 of one answer in one group: A is ¼, ¼, ¼, −¾ and S the same for all."""
    trainer = training.make_trainer(policy_folder, make_settings(Setup("naive"), 0))
    side = asympo.NegativeSide()
    batch = [make_trajectory(1.0, 20), make_trajectory(1.0, 9), make_trajectory(1.0, 8), make_trajectory(0.0, 1)]
    for _ in range(asympo.WATCH_EVERY):
        side.watch(trainer, batch, 20)
    assert side.share("0") == 0.0
    assert side.share("9-16") == 0.0
    assert side.share("17-24") == 1.0
    assert side.share("1-8") is None
    assert side.share(*asympo.BUCKETS) == pytest.approx(0.5)


def test_bytes_are_those_that_the_objective_needs() -> None:
    trajectory = make_trajectory(1.0, 20)
    whole = trajectory.model_dump_json()
    assert asympo.count_bytes(trajectory, "grpo") == len(whole)
    spared = whole.replace('"behavior_logprobs":[-0.123456789,-0.987654321],', "")
    spared = spared.replace('"spans":[{"start":0,"end":2,"version":20}],', "")
    assert asympo.count_bytes(trajectory, "asympo") == len(spared)


def test_a_training_run_is_reproducible_and_watched(policy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "prepare_base", lambda task: policy_folder)
    monkeypatch.setattr(training, "START", 16)
    setup = Setup("sao", task="sorting", lag=Lag("uniform", 2), updates=4)
    seen: list[int] = []
    first, second = (train(setup, 3, watch=lambda _, batch, version: seen.append(version)) for _ in range(2))
    assert first.rewards == second.rewards
    assert [m["policy/loss"] for m in first.metrics] == [m["policy/loss"] for m in second.metrics]
    assert seen == [0, 1, 2, 3] * 2
    assert max(m["staleness/max"] for m in first.metrics) <= 2


def test_values_are_pretrained_before_the_first_update(policy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int | bool] = []
    monkeypatch.setattr(training, "prepare_base", lambda task: policy_folder)
    monkeypatch.setattr(training, "START", 16)
    monkeypatch.setattr(training, "pretrain", lambda value, fixed, settings, device: calls.append(len(fixed)))
    setup = Setup("sao", task="sorting", lag=Lag("constant", 0), updates=1, pretraining=32)
    train(setup, 3, watch=lambda trainer, batch, version: calls.append(trainer.value.is_ready))
    assert calls == [32, True]


def test_every_value_setting_reaches_the_trainer(policy_folder: Path) -> None:
    """A switch that the learner knows but that is not handed on would make two variants the same."""
    frozen, trained = (
        training.make_trainer(policy_folder, make_settings(Setup("sao", settings={"value_attention": attention}), 0))
        for attention in ("frozen", "trained")
    )
    assert frozen.value is not None
    assert trained.value is not None
    assert frozen.value.model.parameters().keys() < trained.value.model.parameters().keys()


def test_throughput_claims_are_ratios_of_paired_seeds() -> None:
    rows = [
        {"objective": f"{schedule}/simulated", "seed": seed, "updates_per_hour": rate * (1 + 0.01 * seed)}
        for schedule, rate in (("single", 300.0), ("group", 150.0), ("synchronous", 400.0))
        for seed in range(3)
    ]
    claims = throughput.judge(rows)
    text = "Single rollouts make more updates an hour than {} (simulated time)"
    assert find_claim(claims, text.format("a group barrier")).estimate == pytest.approx(2.0)
    assert find_claim(claims, text.format("a group barrier")).held is True
    assert find_claim(claims, text.format("a synchronous batch")).held is False


def test_simulated_throughput_is_reproducible() -> None:
    plan = throughput.Plan("single", "simulated", 200.0)
    assert throughput.measure(plan, 1) == throughput.measure(plan, 1)


def test_the_command_from_end_to_end(tmp_path: Path) -> None:
    """Two simulated schedules: table, claims, JSON and figure; the second time nothing is run."""
    path = tmp_path / "t.json"
    arguments = ["throughput", "--quick", "--seeds", "2", "--processes", "1", "--json", str(path), "--objectives"]
    line = [sys.executable, "-m", "benchmarks.papers", *arguments, "single/simulated,group/simulated"]
    first, second = (subprocess.run(line, capture_output=True, text=True, check=False) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr + second.stdout
    written = json.loads(path.read_text())
    assert len(written["rows"]) == 4
    assert {"claim", "held", "estimate", "low", "high"} <= written["claims"][0].keys()
    assert path.with_suffix(".png").stat().st_size > 1000
    assert "0/0" in second.stdout


def test_lags_and_settings_of_the_command_line() -> None:
    assert command.parse_lag("uniform:24") == Lag("uniform", 24)
    assert command.parse_lag("constant:8:single") == Lag("constant", 8, mixed=False)
    assert command.parse_setting("learning_rate=1e-3") == ("learning_rate", 0.001)
    assert command.parse_setting("gae=plain") == ("gae", "plain")


def test_jobs_describe_their_set_up_as_json() -> None:
    job = Job("sao", 0, Setup("sao", settings={"learning_rate": 0.5}), 1)
    assert job.described == json.loads(json.dumps(job.described))
    assert SORTING.name == "sorting"
