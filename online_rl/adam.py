"""AdamW on named parameters, whose whole state can be read and set as plain tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_STATE = ("step", "exp_avg", "exp_avg_sq")


class NamedAdam:
    """One optimiser. `tensors` and `load` make a checkpoint exact: parameters, both moments and the step count."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, learning_rate: float, weight_decay: float) -> None:
        self._parameters = dict(parameters)
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=learning_rate, weight_decay=weight_decay, betas=(0.9, 0.99)
        )

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def clip(self, max_norm: float) -> float:
        """Scale the gradients down to `max_norm`; returns their norm before, inf or NaN where one is not finite."""
        return float(nn.utils.clip_grad_norm_(self._parameters.values(), max_norm))

    def step(self) -> None:
        self._optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and optimiser state by name. The tensors are those in use, not copies."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            found[f"parameter/{name}"] = parameter.detach()
            for key, value in self._optimizer.state.get(parameter, {}).items():
                found[f"{key}/{name}"] = value
        return found

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set what `tensors` returned before. Raises KeyError or RuntimeError where a name or shape differs."""
        self.zero_grad()
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[f"parameter/{name}"])
            if f"step/{name}" in tensors:
                self._optimizer.state[parameter] = {key: tensors[f"{key}/{name}"].clone() for key in _STATE}
            else:
                self._optimizer.state.pop(parameter, None)
