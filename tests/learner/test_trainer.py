"""One update: the split does not matter, a bad batch changes nothing, and it really learns."""

import math

import pytest
import torch

from online_rl.settings import LearnerSettings
from online_rl.update_errors import UpdateFailed
from serving.schemas import VersionSpan
from tests.learner.tiny import SETTINGS, make_trainer, make_trajectories, make_trajectory


def with_settings(**changes):
    return LearnerSettings.model_validate(SETTINGS.model_dump() | changes)


def snapshot(trainer):
    return {name: tensor.clone() for name, tensor in trainer.tensors().items()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_micro_batches_do_not_change_the_result(model_folder):
    results = []
    for limit in (128, 100_000):
        trainer = make_trainer(model_folder, with_settings(micro_batch_tokens=limit, batch_size=40))
        metrics = [trainer.update(make_trajectories(40, start)) for start in (0, 40)]
        results.append((snapshot(trainer), metrics))
    (small, small_metrics), (large, large_metrics) = results
    for name in large:
        torch.testing.assert_close(small[name], large[name], atol=2e-4, rtol=2e-3)
    for name, value in large_metrics[-1].items():
        if not name.startswith("seconds/"):
            assert small_metrics[-1][name] == pytest.approx(value, rel=2e-2, abs=2e-3), name


def test_the_same_update_twice_is_the_same_to_the_bit(model_folder):
    first, second = make_trainer(model_folder), make_trainer(model_folder)
    for trainer in (first, second):
        for start in (0, 4):
            trainer.update(make_trajectories(4, start))
    assert_same(snapshot(first), snapshot(second))


@pytest.mark.parametrize("bad", ["reward", "logprobs"])
def test_a_batch_that_is_not_finite_changes_nothing(model_folder, bad):
    trainer = make_trainer(model_folder)
    trainer.update(make_trajectories(4))
    before, counters = snapshot(trainer), vars(trainer.counters).copy()
    good = make_trajectory(9)
    broken = good.model_copy(
        update={"reward": math.nan}
        if bad == "reward"
        else {"behavior_logprobs": (math.nan,) * len(good.behavior_logprobs or ()), "reward": math.inf}
    )
    with pytest.raises(UpdateFailed):
        trainer.update([*make_trajectories(3), broken])
    assert_same(snapshot(trainer), before)
    assert vars(trainer.counters) == counters
    trainer.update(make_trajectories(4))


def test_weights_that_overflow_are_undone_after_the_value_updates(model_folder):
    trainer = make_trainer(model_folder)
    trainer.update(make_trajectories(4))
    for name, tensor in trainer.tensors().items():
        if name.startswith("policy/parameter/") and "lora_B" in name:
            tensor.fill_(math.inf)
    before = snapshot(trainer)
    with pytest.raises(UpdateFailed, match="policy update"):
        trainer.update(make_trajectories(4))
    assert_same(snapshot(trainer), before)


def test_learning_rate_0_leaves_the_policy(model_folder):
    trainer = make_trainer(model_folder, with_settings(learning_rate=0.0))
    before = {name: p.clone() for name, p in trainer.policy.parameters().items()}
    metrics = trainer.update(make_trajectories(4))
    assert metrics["policy/grad_norm"] > 0
    assert all(torch.equal(p, before[name]) for name, p in trainer.policy.parameters().items())


def test_the_entropy_floor_skips_the_policy_step_only(model_folder):
    trainer = make_trainer(model_folder, with_settings(entropy_floor=50.0))
    before = {name: p.clone() for name, p in trainer.policy.parameters().items()}
    metrics = trainer.update(make_trajectories(4))
    assert metrics["policy/skipped"] == 1.0
    assert trainer.counters.entropy_skips == 1
    assert all(torch.equal(p, before[name]) for name, p in trainer.policy.parameters().items())


def test_warm_up_comes_before_the_first_policy_update_only(model_folder):
    trainer = make_trainer(model_folder, with_settings(value_warmup=5))
    made: list[int] = []
    for _ in range(3):
        trainer.update(make_trajectories(4))
        made.append(trainer.counters.value_updates)
    assert made == [5 + 2, 5 + 4, 5 + 6]


@pytest.mark.parametrize(("k", "source"), [(0, "before"), (2, "before"), (2, "after")])
def test_where_advantages_come_from(model_folder, k, source):
    plain = {"value_warmup": 0, "center_advantages": False}
    trainer = make_trainer(model_folder, with_settings(value_updates=k, advantages_from=source, **plain))
    metrics = trainer.update([make_trajectory(n, reward=1.0) for n in range(4)])
    # With V = 0 before, every advantage is the discounted reward; V > 0 after makes them smaller.
    assert (metrics["value/mean"] == 0.0) or k == 0
    if source == "before":
        assert metrics["advantage/mean"] > 0.5
    else:
        untouched = make_trainer(model_folder, with_settings(**plain))
        assert (
            metrics["advantage/mean"]
            < untouched.update([make_trajectory(n, reward=1.0) for n in range(4)])["advantage/mean"]
        )


def test_residuals_follow_the_order_of_the_batch(model_folder):
    trainer = make_trainer(model_folder, with_settings(micro_batch_tokens=128))
    trainer.update(make_trajectories(4))
    assert trainer.residuals == [None] * 4
    batch = [make_trajectory(n, reward=float(n)) for n in range(4)]
    trainer.update(batch)
    residuals = [r for r in trainer.residuals if r is not None]
    assert [round(r) for r in residuals] == [0, 1, 2, 3]


def test_metrics_are_complete_and_finite(model_folder):
    trainer = make_trainer(model_folder)
    spans = lambda n: (VersionSpan(start=0, end=sum(make_trajectory(n).action_mask), version=n),)  # noqa: E731
    batch = [make_trajectory(n, spans=spans(n), metrics={"helpful": 1.0}) for n in range(4)]
    metrics = trainer.update(batch, current_version=5)
    wanted = """reward/mean reward/std reward/metric/helpful value/loss value/explained_variance value/grad_norm
        value/mean advantage/mean advantage/std policy/loss policy/mask_ratio policy/ratio_mean policy/ratio_max
        policy/behavior_kl
        policy/kl_to_base policy/entropy policy/grad_norm policy/skipped staleness/mean staleness/max batch/tokens
        batch/action_tokens batch/trajectories seconds/value seconds/policy seconds/update"""
    assert set(wanted.split()) <= metrics.keys()
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["staleness/max"] == 5.0
    assert metrics["policy/kl_to_base"] == 0.0


def test_a_rewarded_token_becomes_likely(model_folder):
    """The real thing in small: of the answers the policy gives, those that begin with token 7 are rewarded."""
    trainer = make_trainer(model_folder, with_settings(learning_rate=2e-2, kl_coefficient=0.0, batch_size=16))
    torch.manual_seed(0)
    rates = []
    for step in range(25):
        batch = []
        for number in range(16):
            prompt = [1, 2, 3]
            logits = trainer.policy.base(torch.tensor([prompt])).logits[0, -1].detach()
            token = int(torch.multinomial(logits.softmax(-1), 1))
            batch.append(
                make_trajectory(
                    number,
                    trajectory_id=f"{step}-{number}",
                    token_ids=(*prompt, token),
                    action_mask=(0, 0, 0, 1),
                    behavior_logprobs=(float(logits.log_softmax(-1)[token]),),
                    spans=(VersionSpan(start=0, end=1, version=step),),
                    reward=float(token % 4 == 0),
                )
            )
        rates.append(trainer.update(batch, current_version=step)["reward/mean"])
    assert rates[0] < 0.5
    assert sum(rates[-5:]) / 5 > 0.9


def test_a_batch_of_equal_rewards_pushes_nothing_where_advantages_are_centred(model_folder):
    """Values of 0 and rewards of −1, as right after a shift of taste: alike for all, so nothing to prefer."""
    batch = [make_trajectory(n, reward=-1.0) for n in range(4)]
    same = {"value_updates": 0, "value_warmup": 0, "kl_coefficient": 0.0, "gae_alpha": 1e9}
    centred = make_trainer(model_folder, with_settings(**same)).update(batch)
    plain = make_trainer(model_folder, with_settings(**same, center_advantages=False)).update(batch)
    assert centred["advantage/offset"] == pytest.approx(-1.0, abs=1e-3)
    assert centred["policy/grad_norm"] < 1e-3 * plain["policy/grad_norm"]
