"""AdamW on named parameters, whose whole state can be read and set as plain tensors.

A parameter of lower precision than float32 is trained through a float32 master copy: the gradients of all
micro-batches add up in float32, the step is taken on the copy, and the parameter becomes the copy rounded. A step of
learning rate 1e-6 on a bfloat16 weight itself would be lost to rounding.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_STATE = ("step", "exp_avg", "exp_avg_sq")


class NamedAdam:
    """One optimiser. `tensors` and `load` make a checkpoint exact: masters, both moments and the step count."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        learning_rate: float,
        weight_decay: float,
        momentum: float = 0.9,
    ) -> None:
        """`momentum` is AdamW's β1."""
        self._parameters = dict(parameters)
        self._masters = {name: make_master(parameter) for name, parameter in self._parameters.items()}
        self._optimizer = torch.optim.AdamW(
            self._masters.values(), lr=learning_rate, weight_decay=weight_decay, betas=(momentum, 0.99)
        )

    def set_learning_rate(self, learning_rate: float) -> None:
        """For the next steps."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    @torch.no_grad()
    def draw(self, targets: Mapping[str, Tensor], kept: float) -> None:
        """Move the parameters named in `targets` towards them, so that the share `kept` of the distance is left."""
        for name, target in targets.items():
            master = self._masters[name]
            master.lerp_(target.to(master), 1.0 - kept)
        self._round()

    def forget_moments(self) -> None:
        """Begin both moments and the step count anew."""
        self._optimizer.state.clear()

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> dict[str, Tensor]:
        """What has added up since `zero_grad`, float32, by name; the tensors in use."""
        return {name: master.grad for name, master in self._masters.items() if master.grad is not None}

    def clip(self, max_norm: float) -> float:
        """Scale the gradients down to `max_norm`; returns their norm before, inf or NaN where one is not finite."""
        return float(nn.utils.clip_grad_norm_(self._masters.values(), max_norm))

    def step(self) -> None:
        self._optimizer.step()
        self._round()

    def tensors(self) -> dict[str, Tensor]:
        """Master weights and optimiser state by name. The tensors are those in use, not copies."""
        found: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            found[f"parameter/{name}"] = master.detach()
            for key, value in self._optimizer.state.get(master, {}).items():
                found[f"{key}/{name}"] = value
        return found

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set what `tensors` returned before. Raises KeyError or RuntimeError where a name or shape differs."""
        unknown = {name for name in tensors if name.startswith("parameter/")} - {
            f"parameter/{n}" for n in self._masters
        }
        if unknown:
            raise KeyError(f"{min(unknown)} does not train here")
        self.zero_grad()
        for name, master in self._masters.items():
            master.copy_(tensors[f"parameter/{name}"])
            if f"step/{name}" in tensors:
                self._optimizer.state[master] = {
                    # The step count stays on the CPU, as AdamW keeps it.
                    key: tensors[f"{key}/{name}"].to("cpu" if key == "step" else master.device, copy=True)
                    for key in _STATE
                }
            else:
                self._optimizer.state.pop(master, None)
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        """Bring the parameters up to date with their masters."""
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])


def make_master(parameter: nn.Parameter) -> nn.Parameter:
    """`parameter` itself where it is precise enough, else its float32 copy, which from now on gets its gradients."""
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    master = nn.Parameter(parameter.detach().float())

    def hand_over(_: Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.float()
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(hand_over)
    return master
