"""All weights in training: scores and gradients against autograd, master weights, the guard, and publishing."""

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from online_rl.adam import NamedAdam
from online_rl.base_model import UnusableModel
from online_rl.config import ConfigError, load_settings
from online_rl.models import build_models
from online_rl.packing import pack_sequences
from online_rl.publish import Publisher
from online_rl.schemas import Manifest
from online_rl.settings import LearnerSettings
from online_rl.token_scores import CHUNK, score_tokens
from online_rl.trained_head import score_tokens_trained
from online_rl.trainer import Trainer
from online_rl.value_model import ValueModel
from tests.learner.test_models import sequences_of
from tests.learner.test_publish import plain_logprobs, read_probes
from tests.learner.test_trained_weights import make_experts
from tests.learner.tiny import CPU, SETTINGS, make_model_folder, make_trajectories


def full_settings(**changes):
    return LearnerSettings.model_validate(
        SETTINGS.model_dump() | {"policy_weights": "full", "learning_rate": 1e-3} | changes
    )


def make_full_trainer(folder, dtype=torch.float32, **changes):
    settings = full_settings(**changes)
    return Trainer(*build_models(folder, CPU, dtype, settings), settings)


def test_scores_and_gradients_equal_autograd_across_chunks():
    torch.manual_seed(0)
    count = CHUNK + 3
    leaves = [torch.randn(count, 4), torch.randn(9, 4), torch.randn(9)]
    leaves = [leaf.double().requires_grad_() for leaf in leaves]
    reference = (torch.randn(count, 4).double(), torch.randn(9, 4).double(), torch.randn(9).double())
    targets, upstream = torch.arange(count) % 9, torch.randn(2, count)

    def plainly(hidden, weight, bias):
        p, q = linear(hidden, weight, bias).log_softmax(-1), linear(*reference).log_softmax(-1)
        return p.gather(-1, targets[:, None])[:, 0], (p.exp() * (p - q)).sum(-1)

    results = []
    for ours in (True, False):
        if ours:
            scores = score_tokens_trained(*leaves, targets, reference)
            logprobs, kl = scores.logprobs, scores.kl
            torch.testing.assert_close(
                scores.reference_logprobs.double(),
                linear(*reference).log_softmax(-1).gather(-1, targets[:, None])[:, 0],
            )
        else:
            logprobs, kl = plainly(*leaves)
        results.append(torch.autograd.grad((logprobs * upstream[0] + kl * upstream[1]).sum(), leaves))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_it_scores_as_the_frozen_output_layer_does():
    torch.manual_seed(0)
    hidden, weight, reference = torch.randn(5, 4), torch.randn(7, 4), torch.randn(5, 4)
    targets = torch.arange(5)
    frozen = score_tokens(hidden, weight, None, targets, reference)
    trained = score_tokens_trained(hidden, weight, None, targets, (reference, weight, None))
    for name in ("logprobs", "entropies", "kl", "reference_logprobs"):
        torch.testing.assert_close(getattr(trained, name), getattr(frozen, name))
    assert score_tokens_trained(hidden, weight, None, targets).reference_logprobs.isnan().all()


def test_a_small_step_on_a_bfloat16_weight_is_not_lost():
    """1 + 2^-8 is the next bfloat16 above 1: 100 steps of 1e-4 get there in the master, none would without it."""
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    adam = NamedAdam({"w": weight}, learning_rate=1e-4, weight_decay=0.0)
    for step in range(100):
        adam.zero_grad()
        # Two micro-batches; 1 + 2^-9 of a gradient would round to 1 if they met in bfloat16.
        (-weight.sum()).backward()
        (-weight.sum() * 2**-9).backward()
        assert adam.clip(1e9) == pytest.approx(3**0.5 * (1 + 2**-9), rel=1e-6)
        adam.step()
        if step == 0:
            assert weight.tolist() == [1.0] * 3
    master = adam.tensors()["parameter/w"]
    assert master.dtype == torch.float32
    assert master.tolist() == pytest.approx([1.01] * 3, abs=1e-5)
    assert torch.equal(weight.detach(), master.to(torch.bfloat16))
    assert weight[0] > 1.0


def test_loading_brings_back_masters_moments_and_weights():
    weight = torch.nn.Parameter(torch.randn(4).bfloat16())
    adam = NamedAdam({"w": weight}, learning_rate=1e-2, weight_decay=0.0)
    for _ in range(2):
        adam.zero_grad()
        weight.square().sum().backward()
        adam.step()
    saved = {name: tensor.clone() for name, tensor in adam.tensors().items()}
    rounded = weight.detach().clone()
    weight.square().sum().backward()
    adam.step()
    adam.load(saved)
    assert torch.equal(weight, rounded)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in adam.tensors().items())
    with pytest.raises(KeyError, match="parameter/other"):
        adam.load(saved | {"parameter/other": torch.zeros(1)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_moves_all_weights_and_not_the_reference(model_folder, dtype):
    trainer = make_full_trainer(model_folder, dtype)
    before = {name: weight.clone() for name, weight in trainer.policy.base_weights().items()}
    first = trainer.update(make_trajectories(4))
    assert first["policy/kl_to_base"] == pytest.approx(0.0, abs=1e-6)
    second = trainer.update(make_trajectories(4, 4))
    assert second["policy/kl_to_base"] > 1e-6
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.policy.base_weights().items())
    masters = {n: t for n, t in trainer.tensors().items() if n.startswith("policy/parameter/")}
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    assert {weight.dtype for weight in trainer.policy.parameters().values()} == {dtype}
    assert all(not torch.equal(t, before[n.removeprefix("policy/parameter/")].float()) for n, t in masters.items())


@pytest.mark.parametrize("tied", [False, True])
def test_a_version_of_full_weights_is_served_as_it_is(tmp_path, tied):
    base = make_model_folder(tmp_path / "base", tied=tied)
    trainer = make_full_trainer(base, learning_rate=1e-2)
    publisher = Publisher(tmp_path / "versions", base, trainer.policy, write_merged=True)
    recent = make_trajectories(8)
    folders = []
    for version in (1, 2):
        trainer.update(make_trajectories(4, 4 * version))
        folders.append(publisher.publish(version, version - 1, update=version, recent=recent, created_at=1.0))
    first, second = folders
    manifest = Manifest.model_validate_json((second / "manifest.json").read_bytes())
    assert (manifest.kind, manifest.lora_rank) == ("full", None)
    assert not (second / "adapter").exists()
    written = load_file(second / "merged" / "model.safetensors")
    for name, weight in trainer.policy.parameters().items():
        assert torch.equal(written[name], weight.detach().bfloat16()), name
    if tied:
        assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])
    # What plain transformers compute on the folders is what the probes say of both versions.
    for probe in read_probes(second):
        assert plain_logprobs(second / "merged", probe) == pytest.approx(list(probe.logprobs), abs=1e-4)
        assert plain_logprobs(first / "merged", probe) == pytest.approx(list(probe.parent_logprobs), abs=1e-4)
    for probe in read_probes(first):
        assert plain_logprobs(base, probe) == pytest.approx(list(probe.parent_logprobs), abs=1e-4)
    # Scoring for the probes put the weights in training back.
    (pack,) = pack_sequences(sequences_of(recent), 1000)
    again = make_full_trainer(base, learning_rate=1e-2)
    again.load(trainer.tensors())
    assert torch.equal(again.policy.score(pack).logprobs, trainer.policy.score(pack).logprobs)


def test_full_weights_whose_names_differ_on_disk_are_refused(tmp_path):
    """Qwen3-MoE keeps one tensor an expert in its file and one for all in memory."""
    folder = tmp_path / "experts"
    make_experts().save_pretrained(folder)
    settings = full_settings()
    policy, _ = build_models(folder, CPU, torch.float32, settings)
    with pytest.raises(UnusableModel, match=r"no tensor model\.layers\.0\.mlp\.experts"):
        Publisher(tmp_path / "versions", folder, policy, write_merged=True)


def test_frozen_weights_are_in_memory_once(model_folder):
    policy, value = build_models(model_folder, CPU, torch.float32, full_settings())
    assert isinstance(value, ValueModel)
    frozen = dict(policy.base_weights())
    shared = {n.replace(".base_layer", ""): p for n, p in value.base.named_parameters() if not p.requires_grad}
    assert all(frozen[name].data_ptr() == weight.data_ptr() for name, weight in shared.items())
    assert all(frozen[n].data_ptr() != p.data_ptr() for n, p in policy.parameters().items())


@pytest.mark.parametrize("value_model", ["lora", "full", "shared_trunk"])
def test_every_value_model_learns_the_return_on_every_policy(model_folder, value_model):
    """The last prompt token decides the return; V rises towards it."""
    settings = full_settings(policy_weights="lora", value_model=value_model, value_updates=12, value_warmup=0)
    trainer = Trainer(*build_models(model_folder, CPU, torch.float32, settings), settings)
    batch = [t.model_copy(update={"reward": float(t.token_ids[6] % 2)}) for t in make_trajectories(12)]
    first, last = [trainer.update(batch) for _ in range(3)][::2]
    assert last["value/explained_variance"] > 0.5 > first["value/explained_variance"]


def test_full_weights_need_a_swap_that_can_load_them():
    with pytest.raises(ConfigError, match=r"swap\.mode to full"):
        load_settings({"learner": {"policy_weights": "full"}})
    load_settings({"learner": {"policy_weights": "full"}, "swap": {"mode": "full"}})


def test_transformers_loads_what_is_published(tmp_path, model_folder):
    trainer = make_full_trainer(model_folder)
    publisher = Publisher(tmp_path / "versions", model_folder, trainer.policy, write_merged=True)
    folder = publisher.publish(1, 0, update=1, recent=make_trajectories(2), created_at=1.0)
    AutoModelForCausalLM.from_pretrained(folder / "merged")
