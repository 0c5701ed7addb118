"""A shift of taste is reacted to once, within bounds, and the reaction survives a restart."""

import pytest
import sqlalchemy as sa
import torch
from safetensors.torch import load_file

from online_rl.drift_events import Recovery, Shift
from online_rl.full_policy import FullPolicy
from online_rl.reaction import end_reaction, kept_share, plan_reaction
from online_rl.settings import ResponseSettings
from online_rl.tables import drift_events, drops, updates
from tests.learner.fakes import FakeLog
from tests.learner.harness import Service, make_service
from tests.learner.test_full_policy import make_full_trainer
from tests.learner.tiny import SETTINGS, make_trainer, make_trajectories, make_trajectory

SHIFT = Shift(
    stream="reward",
    trajectories=64,
    detected_at=70.0,
    before=0.9,
    after=0.1,
    evidence={"changed_at": 60.0},
)
LIKED, DISLIKED = {"reward": 1.0}, {"reward": 0.0}
PATIENT = SETTINGS.model_copy(update={"max_staleness": 1000, "value_learning_rate": 0.0})
"""The values stay 0, so that the residual is the reward and what is found does not hang on the value model."""


@pytest.mark.parametrize(
    ("before", "after", "lowest", "least", "kept"),
    [
        (0.8, 0.2, 0.0, 0.0, 0.25),
        (0.8, 0.0, -1.0, 0.0, 1 / 1.8),
        (0.8, 0.0, 0.0, 0.3, 0.3),
        (0.5, 0.6, 0.0, 0.0, 1.0),
        (0.0, 0.0, 0.0, 0.0, 1.0),
    ],
)
def test_what_still_earns_is_kept(before, after, lowest, least, kept):
    assert kept_share(before, after, lowest, least) == pytest.approx(kept)


def test_a_reaction_waits_for_rewards_and_is_bounded():
    settings = ResponseSettings(confirm=4, updates=3, value_factor=2)
    assert plan_reaction(SHIFT, [0.0] * 3, 0.0, 10, 2, settings) is None
    reaction = plan_reaction(SHIFT, [0.0, 0.4] * 2, 0.0, 10, 2, settings)
    assert reaction is not None
    assert (reaction.first_update, reaction.last_update, reaction.value_updates) == (11, 13, 4)
    assert reaction.kept == pytest.approx(0.2 / 0.9)
    assert end_reaction(reaction, 12, None) is None
    ended = end_reaction(reaction, 13, None)
    assert ended is not None
    assert ended.ended == "updates"
    recovery = Recovery(stream="reward", trajectories=64, recovered_at=1.0, recovered_after=9, recovered_seconds=1.0)
    recovered = end_reaction(reaction, 12, recovery)
    assert recovered is not None
    assert recovered.ended == "recovered"


@pytest.mark.parametrize("kept", [0.0, 0.25, 1.0])
def test_an_adapter_is_taken_back_by_the_share(model_folder, kept):
    trainer = make_trainer(model_folder)
    base = trainer.policy.served_weights(torch.float32)
    trainer.update(make_trajectories(4))
    learned = trainer.policy.served_weights(torch.float32)
    trainer.take_back(kept)
    for name, weight in trainer.policy.served_weights(torch.float32).items():
        assert not torch.equal(learned[name], base[name])
        torch.testing.assert_close(weight, base[name] + kept * (learned[name] - base[name]))


def test_full_weights_are_taken_back_to_the_base_model(model_folder):
    trainer = make_full_trainer(model_folder, learning_rate=1e-3)
    policy = trainer.policy
    assert isinstance(policy, FullPolicy)
    trainer.update(make_trajectories(4))
    base = policy.base_weights()
    assert any(not torch.equal(weight, base[name]) for name, weight in policy.layers().items())
    trainer.take_back(0.0)
    assert all(torch.equal(weight, base[name]) for name, weight in policy.layers().items())


def test_moments_are_forgotten_and_weights_are_not(model_folder):
    trainer = make_trainer(model_folder)
    trainer.update(make_trajectories(4))
    before = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    trainer.forget_moments()
    after = trainer.tensors()
    assert sorted(after) == sorted(name for name in before if "/parameter/" in name)
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def test_the_schedule_begins_anew(tmp_path, model_folder):
    settings = PATIENT.model_copy(update={"schedule": "linear", "schedule_updates": 10, "schedule_floor": 0.1})
    log = FakeLog()
    log.append(*(make_trajectory(number, **LIKED) for number in range(64)))
    log.append(*(make_trajectory(number, **DISLIKED) for number in range(64, 80)))
    service = make_service(tmp_path, model_folder, log, settings, response=ResponseSettings(confirm=4))
    while service.loop.round():
        pass
    rates = [metrics["policy/learning_rate"] for metrics in service.column(sa.select(updates.c.metrics))]
    (reaction,) = reactions(service)
    assert reaction is not None
    first = reaction["first_update"]
    assert rates[first - 2] == pytest.approx(1e-3)
    assert rates[first - 1] == pytest.approx(1e-2)
    restarted = make_service(tmp_path, model_folder, log, settings)
    assert restarted.trainer.counters.schedule_start == first - 1


def shifted_service(folder, model_folder, **response) -> tuple[Service, FakeLog]:
    """16 batches of four that users liked, then five that nobody likes: found in the third, certain in the last."""
    log = FakeLog()
    log.append(*(make_trajectory(number, **LIKED) for number in range(64)))
    log.append(*(make_trajectory(number, **DISLIKED) for number in range(64, 84)))
    settings = ResponseSettings.model_validate({"confirm": 10} | response)
    service = make_service(folder, model_folder, log, PATIENT, response=settings)
    for _ in range(21):
        assert service.loop.round()
    return service, log


def reactions(service: Service) -> list[dict | None]:
    return service.column(sa.select(drift_events.c.reaction).order_by(drift_events.c.trajectories))


def adapter_is_base(service: Service) -> bool:
    found = [p for name, p in service.trainer.policy.parameters().items() if ".lora_B." in name]
    assert found
    return all(bool((parameter == 0).all()) for parameter in found)


def test_a_shift_takes_back_what_no_longer_pays_and_is_published(tmp_path, model_folder):
    service, _ = shifted_service(tmp_path, model_folder)
    (reaction,) = reactions(service)
    assert reaction is not None
    assert reaction["kept"] == 0.0
    assert 56.0 <= reaction["since"] <= 64.0
    assert (reaction["last_update"] - reaction["first_update"], reaction["ended"]) == (7, "")
    assert adapter_is_base(service)
    newest = service.registry.list()[-1]
    assert newest.metrics["update"] == service.loop.updates == reaction["first_update"] - 1
    found = load_file(service.publisher.folder(newest.version) / "merged" / "model.safetensors")
    served = service.trainer.policy.served_weights(torch.bfloat16)
    assert all(torch.equal(found[name], weight) for name, weight in served.items())


def test_a_false_alarm_takes_little_back(tmp_path, model_folder):
    log = FakeLog()
    log.append(*(make_trajectory(number, **LIKED) for number in range(64)))
    log.append(*(make_trajectory(number, **DISLIKED) for number in range(64, 76)))
    log.append(*(make_trajectory(number, **LIKED) for number in range(76, 96)))
    service = make_service(tmp_path, model_folder, log, PATIENT)
    while service.loop.round():
        pass
    (reaction,) = reactions(service)
    assert reaction is not None
    assert reaction["kept"] >= 0.75
    assert not adapter_is_base(service)


def test_switched_off_a_shift_is_recorded_only(tmp_path, model_folder):
    service, _ = shifted_service(tmp_path, model_folder, enabled=False)
    assert reactions(service) == [None]
    assert not adapter_is_base(service)


def test_a_reaction_has_more_value_updates_and_ends(tmp_path, model_folder):
    service, log = shifted_service(tmp_path, model_folder, updates=2, value_factor=3)
    made = service.trainer.counters.value_updates
    for start in (84, 88, 92):
        log.append(*(make_trajectory(number, **DISLIKED) for number in range(start, start + 4)))
        assert service.loop.round()
    assert service.trainer.counters.value_updates - made == 6 + 6 + 2
    (reaction,) = reactions(service)
    assert reaction is not None
    assert reaction["ended"] == "updates"


@pytest.mark.parametrize("drop_older", [True, False])
def test_what_was_rated_before_the_change_does_not_train_while_it_runs(tmp_path, model_folder, drop_older):
    service, log = shifted_service(tmp_path, model_folder, drop_older=drop_older)
    (reaction,) = reactions(service)
    assert reaction is not None
    since = reaction["since"]
    log.append(make_trajectory(100, rated_at=since - 0.5), make_trajectory(101, rated_at=since))
    assert not service.loop.round()  # too few to train
    assert service.column(sa.select(drops.c.trajectory_id)) == ["t100"] * drop_older
    assert service.column(sa.select(drops.c.reason)) == ["before_shift"] * drop_older


def test_a_reaction_goes_on_after_a_restart(tmp_path, model_folder):
    _, log = shifted_service(tmp_path, model_folder, updates=1)
    restarted = make_service(tmp_path, model_folder, log, PATIENT, response=ResponseSettings(updates=1))
    assert adapter_is_base(restarted)
    made = restarted.trainer.counters.value_updates
    log.append(*(make_trajectory(number, **DISLIKED) for number in range(84, 88)))
    assert restarted.loop.round()
    assert restarted.trainer.counters.value_updates - made == 4
    (reaction,) = reactions(restarted)
    assert reaction is not None
    assert reaction["ended"] == "updates"


def test_a_shift_is_not_forgotten_by_a_restart_before_its_reaction(tmp_path, model_folder):
    _, log = shifted_service(tmp_path, model_folder, confirm=14)
    restarted = make_service(tmp_path, model_folder, log, PATIENT, response=ResponseSettings(confirm=14))
    assert not adapter_is_base(restarted)
    log.append(*(make_trajectory(number, **DISLIKED) for number in range(84, 88)))
    assert restarted.loop.round()
    assert adapter_is_base(restarted)


@pytest.mark.parametrize(
    "other",
    [
        {"cause": "prompt_mix", "stream": "mix", "cohort": "key=a"},
        {"cause": "prompt_mix"},
        {"cohort": "tag.plan=pro"},
        {"stream": "metric:short"},
    ],
)
def test_only_a_change_of_taste_in_all_traffic_is_reacted_to(tmp_path, model_folder, other):
    service = make_service(tmp_path, model_folder, FakeLog(), PATIENT, response=ResponseSettings(confirm=1))
    react = service.loop._react
    service.loop._drift.observe(0.0, None, 1.0)
    assert react([SHIFT.model_copy(update=other)]) == []
    assert len(react([SHIFT])) == 1
    # Nor does the recovery of a cohort end what runs.
    recovery = Recovery(
        stream="reward", cohort="key=a", trajectories=64, recovered_at=1.0, recovered_after=9, recovered_seconds=1.0
    )
    assert react([recovery]) == []
    assert len(react([recovery.model_copy(update={"cohort": ""})])) == 1


def test_a_reaction_does_not_begin_within_another(tmp_path, model_folder):
    service, log = shifted_service(tmp_path, model_folder, updates=100)
    # Too few for a recovery, which would end the first reaction.
    log.append(*(make_trajectory(number, **LIKED) for number in range(84, 112)))
    log.append(*(make_trajectory(number, **DISLIKED) for number in range(112, 132)))
    while service.loop.round():
        pass
    first, second = reactions(service)
    assert first is not None
    assert first["ended"] == ""
    assert second is None
