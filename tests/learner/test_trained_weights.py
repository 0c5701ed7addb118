"""Which parameters train, name by name, on a dense model and on a mixture of experts."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from online_rl.base_model import UnusableModel
from online_rl.full_policy import FullPolicy
from online_rl.packing import pack_sequences
from online_rl.policy_model import PolicyModel
from online_rl.shared_trunk import SharedTrunkValue
from online_rl.trained_weights import find_value_weights
from online_rl.value_model import ValueModel
from tests.learner.test_models import sequences_of
from tests.learner.tiny import VOCABULARY, make_trajectories

SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def make_dense(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(SIZE | changes))).eval().requires_grad_(False)


def make_experts():
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SIZE, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[])
    return Qwen3MoeForCausalLM(config).eval().requires_grad_(False)


def layers(*names):
    return {f"model.layers.{layer}.{name}" for layer in (0, 1) for name in names}


MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
HEAD = {"head.weight", "head.level"}


def weights(*names):
    return layers(*(f"{name}.weight" for name in names))


def adapters(*names):
    return {f"base_model.model.{name}.lora_{s}.default.weight" for name in layers(*names) for s in "AB"}


EXPERT_WEIGHTS = layers("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
# PEFT nests one wrapper for each fused parameter of a module.
EXPERT_ADAPTERS = adapters("mlp.experts", "mlp.experts.base_layer")
NORMS = layers("self_attn.q_norm.weight", "self_attn.k_norm.weight")

CASES = {
    ("dense", "lora", "frozen"): adapters(*MLP),
    ("dense", "lora", "trained"): adapters(*MLP, *ATTENTION),
    ("dense", "full", "frozen"): weights(*MLP),
    ("dense", "full", "trained"): weights(*MLP, *ATTENTION),
    ("experts", "lora", "frozen"): EXPERT_ADAPTERS,
    ("experts", "lora", "trained"): EXPERT_ADAPTERS | adapters(*ATTENTION),
    ("experts", "full", "frozen"): EXPERT_WEIGHTS,
    ("experts", "full", "trained"): EXPERT_WEIGHTS | weights(*ATTENTION) | NORMS,
}


def some_pack():
    (pack,) = pack_sequences(sequences_of(make_trajectories(6)), 1000)
    return pack


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exactly_these_train_and_each_gets_a_gradient(case, dtype):
    architecture, kind, attention = case
    base = (make_dense() if architecture == "dense" else make_experts()).to(dtype)
    before = {name: parameter.clone() for name, parameter in base.named_parameters()}
    value = ValueModel(base, rank=2, alpha=4.0, seed=0, weights=kind, attention=attention)
    assert set(value.parameters()) == CASES[case] | HEAD
    everything = {name for name, p in [*base.named_parameters(), *value.head.named_parameters()] if p.requires_grad}
    assert len(everything) == len(value.parameters())

    pack = some_pack()
    torch.nn.init.ones_(value.head.weight)
    for name, parameter in value.parameters().items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    values = value.values(pack)
    values.square().sum().backward()
    assert values.dtype == torch.float32
    idle = [n for n, p in value.parameters().items() if p.grad is None or not p.grad.abs().sum() > 0]
    assert idle == []
    if kind == "lora":
        assert {p.dtype for p in value.parameters().values()} == {torch.float32}
        with value.peft.disable_adapter():
            plain = value.values(pack)
        assert not torch.equal(plain, values)
    frozen = {n: p for n, p in base.named_parameters() if not p.requires_grad}
    renamed = {name.replace(".base_layer", ""): p for name, p in frozen.items()}
    assert all(torch.equal(p, before[name]) for name, p in renamed.items())


def test_an_expert_adapter_adds_its_product_to_each_expert():
    """Against weights merged by hand: expert e of W gains s · B[:, e-th columns] A[e-th rows]."""
    rank, alpha = 2, 4.0
    value = ValueModel(make_experts(), rank=rank, alpha=alpha, seed=0)
    torch.nn.init.ones_(value.head.weight)
    merged = make_experts()
    for name, parameter in value.parameters().items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    for layer in (0, 1):
        outer = value.base.get_submodule(f"model.layers.{layer}.mlp.experts")
        for wrapper in (outer, outer.base_layer):
            a = wrapper.lora_A["default"].weight.reshape(4, rank, -1)
            b = wrapper.lora_B["default"].weight
            b = b.reshape(b.shape[0], rank, 4)
            target = getattr(merged.get_submodule(f"model.layers.{layer}.mlp.experts"), wrapper.parameter_name)
            # PEFT takes the last but one dimension as the input's.
            delta = alpha / rank * torch.einsum("ore,eri->eio", b, a)
            target.data += delta if delta.shape == target.shape else delta.transpose(1, 2)
    plain = ValueModel(merged, rank=rank, alpha=alpha, seed=0)
    torch.nn.init.ones_(plain.head.weight)
    torch.testing.assert_close(plain.values(some_pack()), value.values(some_pack()), atol=1e-5, rtol=1e-4)


def test_full_weights_are_tensors_of_their_own():
    base, other = make_dense(), make_dense()
    for name, parameter in other.named_parameters():
        parameter.data = dict(base.named_parameters())[name].data
    value = ValueModel(other, rank=2, alpha=4.0, seed=0, weights="full")
    for name, parameter in value.parameters().items():
        if name not in HEAD:
            parameter.data.zero_()
            assert dict(base.named_parameters())[name].abs().sum() > 0


def test_an_unknown_naming_is_refused():
    with pytest.raises(UnusableModel, match="shared_trunk"):
        find_value_weights(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_the_shared_trunk_runs_the_base_once_and_trains_its_own_network_only(monkeypatch):
    policy = PolicyModel(make_dense(), rank=2, alpha=4.0, seed=0)
    value = SharedTrunkValue(policy, seed=1)
    pack = some_pack()
    runs = []
    original = policy._run_base
    monkeypatch.setattr(policy, "_run_base", lambda pack: runs.append(1) or original(pack))
    assert value.values(pack).tolist() == [0.0] * len(pack.targets)
    torch.nn.init.ones_(value.head.weight)
    value.values(pack).square().sum().backward()
    policy.base_hidden(pack)
    assert len(runs) == 1
    assert set(value.parameters()) == {"inner.weight", "inner.bias"} | HEAD
    assert all(p.grad is not None for p in value.parameters().values())
    assert all(p.grad is None for p in policy.base.parameters())
    # What the policy learns is not seen: the trunk is the base model.
    before = value.values(pack).detach()
    for parameter in policy.parameters().values():
        torch.nn.init.normal_(parameter)
    torch.testing.assert_close(value.values(some_pack()), before)


def test_the_base_states_go_with_their_pack():
    policy = PolicyModel(make_dense(), rank=2, alpha=4.0, seed=0)
    pack = some_pack()
    policy.base_hidden(pack)
    assert len(policy._base_hidden) == 1
    del pack
    assert len(policy._base_hidden) == 0


def test_the_policy_adapter_sits_where_it_is_told():
    policy = PolicyModel(make_dense(), rank=2, alpha=4.0, seed=0, targets=("q_proj", "mlp.up_proj"))
    assert set(policy.parameters()) == adapters("self_attn.q_proj", "mlp.up_proj")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["lm_head", "embed_tokens"])
def test_no_adapter_on_the_output_layer_or_the_embeddings(tied, name):
    reason = "one tied tensor" if tied else "frozen"
    with pytest.raises(UnusableModel, match=f"lora_targets names {name}.*{reason}"):
        PolicyModel(make_dense(tie_word_embeddings=tied), rank=2, alpha=4.0, seed=0, targets=("q_proj", name))


def test_an_adapter_for_a_layer_that_is_not_there_is_refused():
    with pytest.raises(UnusableModel, match="no layer of the model is named query"):
        PolicyModel(make_dense(), rank=2, alpha=4.0, seed=0, targets=("query",))


@pytest.mark.parametrize("tied", [True, False])
def test_all_weights_of_the_full_policy_train(tied):
    base, reference = make_dense(tie_word_embeddings=tied), make_dense(tie_word_embeddings=tied)
    policy = FullPolicy(base, reference)
    assert set(policy.parameters()) == {name for name, _ in reference.named_parameters()}
    assert ("lm_head.weight" in policy.parameters()) is not tied
    pack = some_pack()
    policy.score(pack, policy.base_hidden(pack)).logprobs.sum().backward()
    assert [n for n, p in policy.parameters().items() if p.grad is None or not p.grad.abs().sum() > 0] == []
    assert not any(p.requires_grad for p in reference.parameters())
