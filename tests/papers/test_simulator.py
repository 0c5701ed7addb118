"""The simulator samples what was asked: lags, spans, and log-probabilities of exactly the versions it names."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from benchmarks.papers.lags import MAX_LAG, Lag
from benchmarks.papers.policy import make_trainer
from benchmarks.papers.sampler import draw_episodes
from benchmarks.papers.simulator import Simulator, find_spans
from benchmarks.papers.tasks import LOOKUP, SORTING
from benchmarks.papers.training import Setup, make_settings
from feedback.schemas import Trajectory
from serving.schemas import VersionSpan


def make_simulator(folder: Path, versions: int = 30, seed: int = 0) -> tuple[Simulator, LlamaForCausalLM]:
    """A simulator with `versions` published, each with adapters of its own, and its policy's plain architecture."""
    trainer = make_trainer(folder, make_settings(Setup("naive"), 0))
    simulator = Simulator(trainer.policy, LOOKUP.max_length, seed)
    torch.manual_seed(1)
    for _ in range(versions):
        for parameter in trainer.policy.parameters().values():
            parameter.data += 0.02 * torch.randn_like(parameter)
        simulator.publish()
    return simulator, LlamaForCausalLM.from_pretrained(folder)


def test_logprobs_are_those_of_the_versions_in_the_spans(policy_folder: Path) -> None:
    simulator, model = make_simulator(policy_folder)
    trajectories = simulator.collect(LOOKUP, 24, Lag("uniform", MAX_LAG))
    for trajectory in trajectories:
        assert_exact(simulator, model, trajectory)


class Repeats:
    """Six turns whatever is said, so that every trajectory spans several versions."""

    prompt = (10, 14, 3, 7, 13)
    reward = 0.0

    def __init__(self) -> None:
        self.turns = 0

    def observe(self, action: object) -> tuple[int, ...] | None:
        self.turns += 1
        return (17, 18, 4, 11)[: 1 + self.turns % 4] if self.turns < LOOKUP.max_turns else None

    def expert(self, rng: Random, error_rate: float) -> tuple[int, ...]:
        raise NotImplementedError


def test_a_version_that_changes_between_turns_sees_the_past_by_its_own_weights(policy_folder: Path) -> None:
    simulator, model = make_simulator(policy_folder)
    task = type(LOOKUP)("repeats", lambda _: Repeats(), 4, LOOKUP.max_turns, LOOKUP.max_length, 0.0)
    trajectories = simulator.collect(task, 16, Lag("constant", MAX_LAG))
    assert max(len(trajectory.spans or ()) for trajectory in trajectories) >= 3
    for trajectory in trajectories:
        assert_exact(simulator, model, trajectory)


@torch.no_grad()
def assert_exact(simulator: Simulator, model: LlamaForCausalLM, trajectory: Trajectory) -> None:
    """Recompute every log-probability with transformers' own forward pass under the weights that the span names."""
    assert trajectory.spans is not None
    assert trajectory.behavior_logprobs is not None
    places = [place for place, marked in enumerate(trajectory.action_mask) if marked]
    for span in trajectory.spans:
        model.load_state_dict(simulator.weights[span.version])
        logprobs = model(torch.tensor([trajectory.token_ids])).logits[0].log_softmax(-1)
        for index in range(span.start, span.end):
            expected = logprobs[places[index] - 1, trajectory.token_ids[places[index]]]
            assert trajectory.behavior_logprobs[index] == pytest.approx(float(expected), abs=2e-4)


def test_the_current_version_scores_as_the_trainer_does(policy_folder: Path) -> None:
    trainer = make_trainer(policy_folder, make_settings(Setup("sao", settings={"learning_rate": 0.0}), 0))
    simulator = Simulator(trainer.policy, LOOKUP.max_length, 0)
    batch = simulator.collect(LOOKUP, 16, Lag("constant", 0))
    metrics = trainer.update(batch)
    assert metrics["policy/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["policy/behavior_kl"] < 1e-6


def test_only_the_last_24_versions_are_kept(policy_folder: Path) -> None:
    simulator, _ = make_simulator(policy_folder, versions=30)
    assert sorted(simulator.weights) == list(range(30 - MAX_LAG, 31))


def test_a_snapshot_does_not_change_with_the_policy(policy_folder: Path) -> None:
    trainer = make_trainer(policy_folder, make_settings(Setup("naive"), 0))
    simulator = Simulator(trainer.policy, LOOKUP.max_length, 0)
    before = {name: tensor.clone() for name, tensor in simulator.weights[0].items()}
    for parameter in trainer.policy.parameters().values():
        parameter.data += 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in simulator.weights[0].items())


def test_the_same_seed_gives_the_same_trajectories(policy_folder: Path) -> None:
    first, second, other = (
        make_simulator(policy_folder, 4, seed)[0].collect(SORTING, 8, Lag("uniform", 4)) for seed in (7, 7, 8)
    )
    assert first == second
    assert [t.token_ids for t in first] != [t.token_ids for t in other]


def test_a_group_answers_one_question(policy_folder: Path) -> None:
    simulator, _ = make_simulator(policy_folder, 1)
    batch = simulator.collect(SORTING, 8, Lag("constant", 0), group_size=4)
    assert [t.group_id for t in batch] == ["g0"] * 4 + ["g1"] * 4
    assert all(t.group_size == 4 for t in batch)
    prompts = [t.token_ids[: t.action_mask.index(1)] for t in batch]
    assert len(set(prompts[:4])) == len(set(prompts[4:])) == 1
    assert prompts[0] != prompts[4]
    assert all(t.group_id is None for t in simulator.collect(SORTING, 2, Lag("constant", 0)))


def test_groups_share_the_environment() -> None:
    first, second = draw_episodes(LOOKUP, Random(0), 2, 2)
    action = (15, 3, 11)
    assert first.observe(action) == second.observe(action)
    with pytest.raises(ValueError, match="batch of 6"):
        draw_episodes(LOOKUP, Random(0), 6, 4)


def test_constant_and_uniform_lags() -> None:
    rng = Random(0)
    assert {Lag("constant", 5).draw(rng) for _ in range(100)} == {5}
    counts = Counter(Lag("uniform", 4).draw(rng) for _ in range(10_000))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(count == pytest.approx(2000, rel=0.1) for count in counts.values())


def test_geometric_lags_fall_by_a_constant_factor() -> None:
    """Mean 4 of the unbounded distribution: P(k + 1) / P(k) = 4/5; nothing above the bound."""
    rng = Random(0)
    counts = Counter(Lag("geometric", 16).draw(rng) for _ in range(40_000))
    assert max(counts) <= 16
    for lag in range(5):
        assert counts[lag + 1] / counts[lag] == pytest.approx(0.8, abs=0.04)


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(["constant", "uniform", "geometric"]),
    most=st.integers(0, MAX_LAG),
    current=st.integers(0, 100),
    turns=st.integers(1, 6),
    mixed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_oldest_version_is_as_old_as_asked(
    kind: str, most: int, current: int, turns: int, mixed: bool, seed: int
) -> None:
    lag = Lag(kind, most, mixed)  # pyright: ignore[reportArgumentType]
    versions = lag.draw_versions(Random(seed), current, turns)
    assert versions == sorted(versions)
    assert versions[0] == max(0, current - lag.draw(Random(seed)))
    assert versions[-1] <= current
    assert mixed or len(set(versions)) == 1


def test_a_lag_beyond_what_is_kept_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lag.most is 25"):
        Lag("constant", 25)


def test_spans_are_runs_of_one_version() -> None:
    assert find_spans([3, 3, 5, 5, 5, 9]) == (
        VersionSpan(start=0, end=2, version=3),
        VersionSpan(start=2, end=5, version=5),
        VersionSpan(start=5, end=6, version=9),
    )
