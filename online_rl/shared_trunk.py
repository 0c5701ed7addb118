"""The cheap value model: a small network on the frozen base's hidden states, which the KL guard computes anyway.

It trains a few tens of thousands of weights and needs no forward pass of its own, but it can only tell apart what the
base model's last hidden state tells apart.
"""

import torch
from torch import Tensor, nn

from online_rl.packing import Pack
from online_rl.policy_model import Policy
from online_rl.value_model import ValueHead, normalize

WIDTH = 128


class SharedTrunkValue:
    """One value for each action token, from the hidden state of the base model before it."""

    def __init__(self, policy: Policy, *, seed: int) -> None:
        torch.manual_seed(seed)
        self._policy = policy
        self._inner = nn.Linear(policy.width, WIDTH, device=policy.device)
        self.head = ValueHead(WIDTH, policy.device)

    def values(self, pack: Pack) -> Tensor:
        """float32 ``[T]``, with gradient where it is enabled. At the start all 0."""
        return self.head(nn.functional.silu(self._inner(normalize(self._policy.base_hidden(pack)))))

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in a fixed order."""
        inner = {f"inner.{name}": parameter for name, parameter in self._inner.named_parameters()}
        return inner | {f"head.{name}": parameter for name, parameter in self.head.named_parameters()}
