"""The gradient of a batch does not depend on how it is cut, and no more than a chunk's logits exist at a time."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from online_rl.batch import make_batch
from online_rl.batch_advantages import estimate_gae
from online_rl.models import build_models
from online_rl.token_scores import CHUNK, score_tokens
from online_rl.trained_head import score_tokens_trained
from online_rl.trainer import Trainer
from tests.learner.test_trainer import with_settings
from tests.learner.tiny import CPU, make_trajectories

# Rates of 0: the steps are taken, and nothing moves between two cuts of the same batch.
# No token is dropped: at the edge of the trust region one rounding would decide whether a token counts at all.
STILL = {
    "learning_rate": 0.0,
    "value_learning_rate": 0.0,
    "max_grad_norm": 1e9,
    "epsilon_low": 1.0,
    "epsilon_high": 1e9,
}
EXACT, ROUNDED = 2e-5, 5e-2
"""Largest |difference| of two gradients over the norm of one; bfloat16 has 8 bits, so one rounding is 0.4%."""


@functools.cache
def make_still_trainer(folder, weights, dtype):
    choice = with_settings(policy_weights=weights, value_model=weights, **STILL)
    trainer = Trainer(*build_models(folder, CPU, dtype, choice), choice)
    torch.manual_seed(1)
    for name, parameter in [*trainer.policy.parameters().items(), *trainer.value.model.parameters().items()]:
        if "lora_B" in name or name == "head.weight":
            torch.nn.init.normal_(parameter, std=0.1)
    return trainer


def gradients(trainer, trajectories, max_tokens):
    batch = make_batch(trajectories, max_tokens=max_tokens, gamma=1.0)
    values, _, norm = trainer.value._step(batch, [])
    trainer.counters.kl_to_base = 1.0  # the guard pulls in full, whatever was measured last
    found = {f"value/{name}": tensor for name, tensor in trainer.value.gradients().items()}
    pairs = zip(batch.packs, values, strict=True)
    advantages = [estimate_gae(part, part_values, trainer.settings) for part, part_values in pairs]
    metrics = trainer._update_policy(batch, advantages)
    found |= {f"policy/{name}": tensor for name, tensor in trainer._policy_optimizer.gradients().items()}
    return found, {"value": norm, "policy": metrics["policy/grad_norm"]}, len(batch.packs)


@pytest.mark.parametrize(
    ("weights", "dtype", "tolerance"),
    [
        ("lora", torch.float32, EXACT),
        ("full", torch.float32, EXACT),
        ("lora", torch.bfloat16, ROUNDED),
        ("full", torch.bfloat16, ROUNDED),
    ],
    ids=str,
)
def test_every_cut_gives_the_gradient_of_the_whole(model_folder, weights, dtype, tolerance):
    trainer = make_still_trainer(model_folder, weights, dtype)

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(st.integers(2, 7), st.integers(0, 50), st.integers(1, 60))
    def check(count, start, limit):
        trajectories = make_trajectories(count, start)
        whole, norms, packs = gradients(trainer, trajectories, 10**6)
        cut, _, _ = gradients(trainer, trajectories, limit)
        assert packs == 1
        assert whole.keys() == cut.keys()
        for model in ("policy", "value"):
            difference = sum((whole[n] - cut[n]).square().sum() for n in whole if n.startswith(model)) ** 0.5
            assert norms[model] > 0
            assert difference <= tolerance * norms[model]

    check()


class Largest(TorchDispatchMode):
    """The most elements that one operation puts out."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self.elements = max(self.elements, item.numel())
        return result


@pytest.mark.parametrize("trained", [False, True])
def test_logits_exist_one_chunk_at_a_time(trained):
    vocabulary, width, tokens = 500, 4, 5 * CHUNK + 7
    torch.manual_seed(0)
    hidden, weight = (
        torch.randn(tokens, width, requires_grad=True),
        torch.randn(vocabulary, width, requires_grad=trained),
    )
    reference, targets = torch.randn(tokens, width), torch.randint(0, vocabulary, (tokens,))
    with Largest() as largest:
        if trained:
            scores = score_tokens_trained(hidden, weight, None, targets, (reference, weight.detach(), None))
        else:
            scores = score_tokens(hidden, weight, None, targets, reference)
        (scores.logprobs.sum() + scores.kl.sum()).backward()
    assert hidden.grad is not None
    assert largest.elements == CHUNK * vocabulary
