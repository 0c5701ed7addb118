"""Why an update is undone."""

import torch


class UpdateFailed(RuntimeError):
    """A loss or a gradient was not finite. Weights and optimisers are as before the update."""


class UpdateUnwanted(Exception):
    """What was trained on must not have been. Weights and optimisers are as before the update."""


def require_finite(area: str, loss: float, norm: float) -> None:
    """Raise UpdateFailed unless both are finite."""
    if not torch.isfinite(torch.tensor([loss, norm])).all():
        raise UpdateFailed(f"{area} update: loss {loss}, gradient norm {norm}; the step was not taken")
