"""Every objective on the trainer: it runs on what it needs and no more, resumes exactly, and undoes what failed."""

import math

import pytest
import sqlalchemy as sa
import torch

from online_rl.admission import AdmissionRules, find_refusal
from online_rl.baselines import make_baseline
from online_rl.drop_reasons import Reason
from online_rl.learner import BaseChanged
from online_rl.objectives import OBJECTIVES
from online_rl.settings import LearnerSettings
from online_rl.tables import drops, updates
from online_rl.trainer import Trainer
from online_rl.update_errors import UpdateFailed
from tests.learner.fakes import FakeLog
from tests.learner.harness import make_service
from tests.learner.tiny import SETTINGS, VOCABULARY, make_models, make_trainer, make_trajectories, make_trajectory

NAMES = sorted(OBJECTIVES)
STATEFUL = ["running_mean", "prompt_running_mean", "ema", "single_stream"]
CURRENT_POLICY = ["naive", "spo", "asympo", "gpg"]
BARE = {"behavior_logprobs": None, "spans": None}


def with_settings(**changes):
    return LearnerSettings.model_validate(SETTINGS.model_dump() | changes)


def bare_or_whole(name, numbers):
    """Trajectories with no more than `name` needs."""
    return [make_trajectory(n, **({} if OBJECTIVES[name].needs.versions else BARE)) for n in numbers]


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_on_what_it_needs_and_no_more(model_folder, name):
    policy, value = make_models(model_folder)
    needs = OBJECTIVES[name].needs
    trainer = Trainer(policy, value if needs.value_model else None, with_settings(objective=name))
    before = {n: p.clone() for n, p in policy.parameters().items()}
    for start in (0, 6):
        metrics = trainer.update(bare_or_whole(name, range(start, start + 6)))
        assert all(math.isfinite(figure) for figure in metrics.values())
    assert metrics["policy/grad_norm"] > 0
    assert not all(torch.equal(p, before[n]) for n, p in policy.parameters().items())
    assert any(n.startswith("value/") for n in trainer.tensors()) == needs.value_model
    assert ("value/loss" in metrics) == needs.value_model
    assert ("batch/short_groups" in metrics) == needs.groups


@pytest.mark.parametrize("name", ["sao", "ppo"])
def test_a_missing_value_model_is_an_error(model_folder, name):
    with pytest.raises(ValueError, match=f"objective = {name} needs a value model"):
        Trainer(make_models(model_folder)[0], None, with_settings(objective=name))


def test_a_value_model_that_is_not_needed_is_not_kept(model_folder):
    assert make_trainer(model_folder, with_settings(objective="grpo")).value is None


@pytest.mark.parametrize("name", NAMES)
def test_admission_refuses_what_lacks_what_is_needed_and_names_it(name):
    rules = AdmissionRules(8, 100, VOCABULARY, objective=name, needs=OBJECTIVES[name].needs)
    for changes, reason, field in (
        ({"behavior_logprobs": None}, Reason.MISSING_LOGPROBS, "behavior_logprobs"),
        ({"spans": None}, Reason.MISSING_VERSIONS, "spans"),
    ):
        refusal = find_refusal(make_trajectory(1, **changes), rules, current_version=0)
        if name in CURRENT_POLICY:
            assert refusal is None
        else:
            assert refusal is not None
            assert refusal.reason is reason
            assert field in refusal.detail
            assert f"learner.objective = {name}" in refusal.detail


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_do_not_change_the_result(model_folder, name):
    """Groups are split over packs."""
    batch = [t.model_copy(update={"group_id": f"g{n % 3}"}) for n, t in enumerate(make_trajectories(18))]
    found = []
    for limit in (128, 100_000):
        trainer = make_trainer(model_folder, with_settings(objective=name, micro_batch_tokens=limit, value_warmup=0))
        metrics = trainer.update(batch)
        found.append({n: m for n, m in metrics.items() if not n.startswith("seconds/")})
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", STATEFUL)
def test_what_a_baseline_learned_in_a_failed_update_is_undone(model_folder, name):
    trainer = make_trainer(model_folder, with_settings(objective=name))
    trainer.update(make_trajectories(4))
    before = trainer.baseline_state()
    for tensor in trainer.policy.parameters().values():
        tensor.data.fill_(math.inf)
    with pytest.raises(UpdateFailed, match="policy update"):
        trainer.update(make_trajectories(4, start=4))
    assert trainer.baseline_state() == before


@pytest.mark.parametrize("name", ["grpo", "asympo", "single_stream"])
def test_a_reward_that_is_not_finite_fails_the_update(model_folder, name):
    trainer = make_trainer(model_folder, with_settings(objective=name))
    for reward in (math.nan, math.inf):
        with pytest.raises(UpdateFailed):
            trainer.update([*make_trajectories(3), make_trajectory(9).model_copy(update={"reward": reward})])


@pytest.mark.parametrize("name", STATEFUL)
def test_a_restart_goes_on_to_the_bit(tmp_path, model_folder, name):
    """Through checkpoint files: weights and what the baseline remembers, against a learner that never stopped."""
    log = FakeLog()
    log.append(*make_trajectories(16))
    settings = with_settings(objective=name, publish_every=100)
    whole = make_service(tmp_path / "whole", model_folder, log, settings)
    for _ in range(4):
        assert whole.loop.round()
    services = []
    for _ in range(4):  # a new learner for every batch
        services.append(make_service(tmp_path / "resumed", model_folder, log, settings))
        assert services[-1].loop.round()
    resumed = services[-1]
    left, right = whole.trainer.tensors(), resumed.trainer.tensors()
    assert left.keys() == right.keys()
    assert [n for n in left if not torch.equal(left[n], right[n])] == []
    baselines = [service.trainer.baseline_state() for service in (whole, resumed)]
    fresh = make_baseline(settings)
    assert fresh is not None
    assert baselines[0] == baselines[1] != fresh.state()


def test_another_objective_goes_on_from_the_weights_with_a_baseline_of_its_own(tmp_path, model_folder, caplog):
    log = FakeLog()
    log.append(*make_trajectories(8))
    make_service(tmp_path, model_folder, log, with_settings(objective="running_mean")).loop.round()
    service = make_service(tmp_path, model_folder, log, with_settings(objective="single_stream"))
    assert "learner.objective was running_mean" in caplog.text
    assert service.trainer.baseline_state() == {"beliefs": []}
    assert service.loop.round()
    assert service.column(sa.select(updates.c.update)) == [1, 2]


def test_trajectories_without_logprobs_and_versions_train_in_the_loop(tmp_path, model_folder):
    log = FakeLog()
    log.append(*(make_trajectory(n, **BARE) for n in range(8)))
    service = make_service(tmp_path / "a", model_folder, log, with_settings(objective="asympo"))
    assert [service.loop.round(), service.loop.round()] == [True, True]
    assert service.column(sa.select(drops.c.reason)) == []
    refusing = make_service(tmp_path / "b", model_folder, log, with_settings(objective="grpo_dis"))
    assert not refusing.loop.round()
    assert service.trainer.value is None
    assert set(refusing.column(sa.select(drops.c.reason))) == {"missing_logprobs"}


@pytest.mark.parametrize("gae", ["plain", "step"])
@pytest.mark.parametrize("source", ["before", "after"])
def test_the_kinds_of_gae_agree_where_there_is_one_action(model_folder, gae, source):
    """Without observations plain is skip-observation; step gives all tokens the surprise of the first."""
    batch = [make_trajectory(n) for n in (1, 2, 4, 5)]
    found = {}
    for kind in ("skip_observation", gae):
        trainer = make_trainer(model_folder, with_settings(gae=kind, advantages_from=source, center_advantages=False))
        found[kind] = trainer.update(batch)
    same = found[gae]["advantage/mean"] == pytest.approx(found["skip_observation"]["advantage/mean"], abs=1e-6)
    assert same == (gae == "plain")


def test_with_observations_the_kinds_of_gae_differ(model_folder):
    batch = [t for t in make_trajectories(60) if t.action_mask != tuple(sorted(t.action_mask))]
    assert len(batch) > 4
    means = set()
    for kind in ("skip_observation", "plain", "step"):
        trainer = make_trainer(model_folder, with_settings(gae=kind, value_warmup=4, center_advantages=False))
        means.add(round(trainer.update(batch)["advantage/mean"], 5))
    assert len(means) == 3


def test_a_value_model_cannot_go_on_from_a_checkpoint_without_one(tmp_path, model_folder):
    log = FakeLog()
    log.append(*make_trajectories(8))
    make_service(tmp_path, model_folder, log, with_settings(objective="asympo")).loop.round()
    with pytest.raises(BaseChanged, match=r"under an objective, asympo"):
        make_service(tmp_path, model_folder, log, with_settings(objective="sao"))
    # The other way round the value model is left behind.
    make_service(tmp_path / "b", model_folder, log, with_settings(objective="sao")).loop.round()
    assert make_service(tmp_path / "b", model_folder, log, with_settings(objective="asympo")).loop.round()
