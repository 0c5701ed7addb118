"""Both models: against plain transformers, what trains, and what a value may see."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from online_rl.batch import make_batch
from online_rl.packing import TokenSequence, pack_sequences
from online_rl.token_scores import score_tokens
from online_rl.value_model import value_loss
from tests.learner.tiny import make_models, make_trajectories


def sequences_of(trajectories):
    return [TokenSequence(t.token_ids, t.action_mask) for t in trajectories]


@pytest.fixture
def models(model_folder):
    return make_models(model_folder)


def test_log_probabilities_equal_those_of_transformers(models, model_folder):
    policy, _ = models
    trajectories = make_trajectories(5)
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    (pack,) = pack_sequences(sequences_of(trajectories), 1000)
    assert pack.token_ids.shape[1] < sum(len(t.token_ids) for t in trajectories)
    scores = policy.score(pack)
    got = scores.logprobs.split(pack.lengths.tolist())
    entropies = scores.entropies.split(pack.lengths.tolist())
    for member, ours, entropy in zip(pack.members, got, entropies, strict=True):
        tokens = torch.tensor([trajectories[member].token_ids])
        table = plain(tokens).logits[0].log_softmax(-1)
        places = torch.tensor([i for i, marked in enumerate(trajectories[member].action_mask) if marked])
        torch.testing.assert_close(ours, table[places - 1, tokens[0][places]], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(entropy, -(table.exp() * table).sum(-1)[places - 1], atol=1e-4, rtol=1e-4)


def test_the_gradient_without_logits_equals_that_of_log_softmax():
    torch.manual_seed(0)
    hidden = torch.randn(700, 8, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(11, 8, dtype=torch.float64), torch.randn(11, dtype=torch.float64)
    targets, upstream = torch.randint(0, 11, (700,)), torch.randn(700)
    (score_tokens(hidden, weight, bias, targets).logprobs * upstream).sum().backward()
    ours, hidden.grad = hidden.grad, None
    table = torch.nn.functional.linear(hidden, weight, bias).log_softmax(-1)
    (table.gather(1, targets[:, None])[:, 0] * upstream).sum().backward()
    torch.testing.assert_close(ours, hidden.grad, atol=1e-5, rtol=1e-5)


def test_lean_products_equal_peft(model_folder):
    policy, _ = make_models(model_folder)
    torch.manual_seed(3)
    for parameter in policy.parameters().values():
        torch.nn.init.normal_(parameter, std=0.3)
    (pack,) = pack_sequences(sequences_of(make_trajectories(4)), 1000)
    results = []
    for _ in ("lean", "peft"):
        policy.peft.zero_grad()
        logprobs = policy.score(pack).logprobs
        logprobs.sum().backward()
        results.append((logprobs.detach(), {n: p.grad for n, p in policy.parameters().items()}))
        for module in policy.peft.modules():
            module.__dict__.pop("forward", None)
    (ours, our_gradients), (theirs, their_gradients) = results
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, atol=2e-3, rtol=2e-3)


def test_exactly_the_adapters_of_linear_layers_train(models):
    policy, value = models
    adapted = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in policy.parameters()}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert all(".lora_" in name for name in policy.parameters())
    trained = set(value.parameters())
    assert {name for name in trained if ".lora_" not in name} == {"head.weight", "head.level"}
    assert all(".mlp." in name for name in trained if ".lora_" in name)
    assert not [name for name in trained if "attn" in name or "embed" in name or "lm_head" in name]
    assert {p.dtype for model in models for p in model.parameters().values()} == {torch.float32}


def test_gradients_reach_exactly_what_trains(models):
    policy, value = models
    (pack,) = pack_sequences(sequences_of(make_trajectories(3)), 1000)
    torch.nn.init.ones_(value.head.weight)
    for name, parameter in [*policy.parameters().items(), *value.parameters().items()]:
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    policy.score(pack).logprobs.sum().backward()
    value.values(pack).sum().backward()
    for model in (policy, value):
        with_gradient = {n for n, p in model.peft.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        assert with_gradient == {name for name in model.parameters() if not name.startswith("head.")}


def test_the_base_score_ignores_the_adapter(models):
    policy, _ = models
    (pack,) = pack_sequences(sequences_of(make_trajectories(3)), 1000)
    before = policy.score(pack).logprobs.detach()
    for name, parameter in policy.parameters().items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    assert not torch.allclose(policy.score(pack).logprobs, before)
    scores = policy.score(pack, policy.base_hidden(pack))
    torch.testing.assert_close(scores.reference_logprobs, before)
    assert not scores.reference_logprobs.requires_grad


def test_values_start_at_zero_and_never_see_their_token(models):
    _, value = models
    first, second = [1, 2, 3, 4, 5], [1, 2, 3, 4, 9]
    (pack,) = pack_sequences([TokenSequence(s, [0, 0, 1, 1, 1]) for s in (first, second)], 100)
    assert value.values(pack).tolist() == [0.0] * 6
    torch.nn.init.ones_(value.head.weight)
    values = value.values(pack).reshape(2, 3)
    # They differ in the last token only, which no value has seen.
    torch.testing.assert_close(values[0], values[1])
    (changed,) = pack_sequences([TokenSequence([1, 2, 3, 8, 5], [0, 0, 1, 1, 1])], 100)
    other = value.values(changed)
    torch.testing.assert_close(other[:2], values[0, :2])
    assert not torch.allclose(other[2], values[0, 2])


def test_value_loss_by_hand_and_clipped():
    values, returns = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])
    assert value_loss(values, returns, total_tokens=2).item() == 0.25
    # From 0.9 the value may count as 0.5 at least: errors max(0.01, 0.25) = 0.25 and 0.
    clipped = value_loss(torch.tensor([0.9, 1.0]), returns, total_tokens=2, before=torch.tensor([0.0, 1.0]), clip=0.5)
    assert clipped.item() == pytest.approx(0.5 * 0.25 / 2)
    with pytest.raises(ValueError, match="before"):
        value_loss(values, returns, total_tokens=2, clip=0.1)


def test_a_batch_keeps_everything_aligned():
    trajectories = make_trajectories(6)
    batch = make_batch(trajectories, max_tokens=30, gamma=1.0)
    assert len(batch.packs) > 1
    assert batch.total_tokens == sum(sum(t.action_mask) for t in trajectories)
    for part in batch.packs:
        members = [trajectories[i] for i in part.pack.members]
        assert part.rewards.tolist() == [t.reward for t in members]
        assert part.behavior_logprobs is not None
        expected = [x for t in members for x in t.behavior_logprobs or ()]
        torch.testing.assert_close(part.behavior_logprobs, torch.tensor(expected))
        assert part.pack.targets.tolist() == [
            x for t in members for x, m in zip(t.token_ids, t.action_mask, strict=True) if m
        ]
        assert part.returns.split(part.pack.lengths.tolist())[0].unique().tolist() == [members[0].reward]
