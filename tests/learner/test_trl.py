"""Our losses and TRL's on the same tensors: TRL's own `_compute_loss`, given log-probabilities instead of a model."""

import warnings
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from online_rl.objectives.cispo import cispo_loss
from online_rl.objectives.gspo import gspo_loss
from online_rl.objectives.ppo import ppo_loss
from tests.learner.inputs import make_inputs

LENGTHS = [5, 1, 8, 3]


@pytest.fixture(scope="module")
def trl_loss():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the version of vLLM, which plays no part here
        from trl.trainer.grpo_trainer import GRPOTrainer

    def compute(logprobs, old, advantages, mask, *, loss_type, level="token", low=0.2, high=0.28):
        """`logprobs` and `old` are padded ``[B, T]``, `advantages` ``[B]``."""
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
            accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
            args=SimpleNamespace(delta=None, steps_per_generation=1),
            model=SimpleNamespace(training=True),
            current_gradient_accumulation_steps=1,
            aux_loss_enabled=False,
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            importance_sampling_level=level,
            beta=0.0,
            loss_type=loss_type,
            epsilon_low=low,
            epsilon_high=high,
            use_vllm=False,
            _entropy_bonus_enabled=False,
            _metrics={"train": defaultdict(list)},
        )
        ones = torch.ones(len(mask), 1, dtype=torch.long)
        inputs = {
            "prompt_ids": ones,
            "prompt_mask": ones,
            "completion_ids": mask,
            "completion_mask": mask,
            "old_per_token_logps": old,
            "advantages": advantages,
            "num_items_in_batch": mask.sum(),
        }
        return GRPOTrainer._compute_loss(trainer, None, inputs)  # pyright: ignore[reportArgumentType]

    return compute


def compare(ours, trl, seed, **options):
    """Both losses and gradients on random tensors with ratios from 0.05 to 20, to 1e-5."""
    torch.manual_seed(seed)
    mask = (torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]).long()
    real = mask.bool()
    padded = torch.where(real, -torch.rand(mask.shape) * 4, 0.0).requires_grad_()
    old = torch.where(real, padded.detach() + torch.randn(mask.shape), 0.0)
    advantages = torch.randn(len(LENGTHS))

    spread = advantages.repeat_interleave(torch.tensor(LENGTHS))
    inputs = make_inputs(padded[real].tolist(), old[real].tolist(), spread.tolist(), lengths=LENGTHS)
    loss, _ = ours(inputs)
    (got,) = torch.autograd.grad(loss, inputs.policy_logprobs)
    theirs = trl(padded, old, advantages, mask, **options)
    (expected,) = torch.autograd.grad(theirs, padded)
    assert loss.item() == pytest.approx(theirs.item(), abs=1e-5)
    torch.testing.assert_close(got, expected[real], atol=1e-5, rtol=1e-5)
    assert got.abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_grpo(trl_loss, seed):
    compare(lambda inputs: ppo_loss(inputs, clip_low=0.2, clip_high=0.28), trl_loss, seed, loss_type="dapo")


@pytest.mark.parametrize("seed", range(2))
def test_cispo(trl_loss, seed):
    # TRL's epsilon_high is the cap itself, ours what it may exceed 1 by.
    compare(lambda inputs: cispo_loss(inputs, epsilon_high=1.0), trl_loss, seed, loss_type="cispo", high=2.0)


@pytest.mark.parametrize("seed", range(2))
def test_gspo(trl_loss, seed):
    ours = lambda inputs: gspo_loss(inputs, clip_low=0.2, clip_high=0.28)  # noqa: E731
    compare(ours, trl_loss, seed, loss_type="grpo", level="sequence")
