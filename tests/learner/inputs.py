"""Inputs of objectives, given as plain numbers."""

import torch

from online_rl.objectives import ObjectiveInputs


def make_inputs(policy, behavior, advantages, total=None, *, lengths=None, **changes) -> ObjectiveInputs:
    """One trajectory of all tokens, unless `lengths` says otherwise. `advantages` are one for each token."""
    lengths = [len(policy)] if lengths is None else lengths
    values = {
        "policy_logprobs": torch.tensor(policy, requires_grad=True),
        "behavior_logprobs": None if behavior is None else torch.tensor(behavior),
        "advantages": torch.tensor(advantages),
        "lengths": torch.tensor(lengths, dtype=torch.long),
        "total_tokens": total or len(policy),
        "total_trajectories": len(lengths),
    }
    return ObjectiveInputs(**(values | changes))


def gradient(loss, inputs) -> list[float]:
    """d loss / d logπ of each token."""
    (found,) = torch.autograd.grad(loss, inputs.policy_logprobs)
    return found.tolist()
