"""The divergence from the base model: exact over the vocabulary, with its gradient formed in the forward pass."""

import math

import pytest
import torch

from online_rl.token_scores import score_tokens


def test_kl_of_two_tokens_by_hand():
    weight = torch.eye(2)
    hidden = torch.tensor([[math.log(3.0), 0.0]])
    reference = torch.tensor([[0.0, 0.0]])
    scores = score_tokens(hidden, weight, None, torch.tensor([1]), reference)
    # p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2)
    assert scores.kl.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert scores.reference_logprobs.item() == pytest.approx(math.log(0.5))
    assert scores.logprobs.item() == pytest.approx(math.log(0.25))


def test_no_divergence_from_itself_and_none_without_a_reference():
    hidden, weight = torch.randn(5, 4), torch.randn(7, 4)
    targets = torch.arange(5)
    assert score_tokens(hidden, weight, None, targets, hidden).kl.abs().max() < 1e-6
    alone = score_tokens(hidden, weight, None, targets)
    assert alone.kl.tolist() == [0.0] * 5
    assert alone.reference_logprobs.isnan().all()


def test_the_gradient_is_that_of_autograd():
    torch.manual_seed(0)
    hidden = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    reference, weight, bias = torch.randn(6, 4).double(), torch.randn(9, 4).double(), torch.randn(9).double()
    targets = torch.arange(6)
    upstream = torch.randn(2, 6)

    def plainly(hidden):
        p = torch.nn.functional.linear(hidden, weight, bias).log_softmax(-1)
        q = torch.nn.functional.linear(reference, weight, bias).log_softmax(-1)
        return p.gather(-1, targets[:, None])[:, 0], (p.exp() * (p - q)).sum(-1)

    scores = score_tokens(hidden, weight, bias, targets, reference)
    ((scores.logprobs * upstream[0]).sum() + (scores.kl * upstream[1]).sum()).backward()
    got, hidden.grad = hidden.grad, None
    logprobs, kl = plainly(hidden)
    ((logprobs * upstream[0]).sum() + (kl * upstream[1]).sum()).backward()
    torch.testing.assert_close(scores.kl.double(), kl, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got, hidden.grad, rtol=1e-5, atol=1e-6)
