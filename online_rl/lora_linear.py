"""A LoRA layer's arithmetic in as few passes over memory as it needs.

PEFT forms the adapter's output, scales it, adds it and casts it: each pass reads and writes a tensor as large as the
layer's output. Here both products accumulate in place, forwards and backwards, and nothing but the input is kept.
"""

from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn


class _LoraProduct(torch.autograd.Function):
    """``y = x Wᵀ + b + s · (x Aᵀ) Bᵀ`` with W and b frozen. A and B may be of higher precision than x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.nn.functional.linear(flat, weight, bias)
        out.addmm_(flat @ a.to(x.dtype).T, b.to(x.dtype).T, alpha=scale)
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale = scale
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        x, weight, a, b = ctx.saved_tensors
        flat, out = x.reshape(-1, x.shape[-1]), gradients[0].reshape(-1, weight.shape[0])
        inner = out @ b.to(x.dtype)
        grad_a = (inner.T @ flat).to(a.dtype).mul_(ctx.scale)
        grad_b = (out.T @ (flat @ a.to(x.dtype).T)).to(b.dtype).mul_(ctx.scale)
        if not ctx.needs_input_grad[0]:
            return None, None, None, grad_a, grad_b, None
        grad_x = out @ weight
        grad_x.addmm_(inner, a.to(x.dtype), alpha=ctx.scale)
        return grad_x.view_as(x), None, None, grad_a, grad_b, None


def _forward(self: LoraLinear, x: Tensor) -> Tensor:
    base = self.get_base_layer()
    if self.disable_adapters:
        return base(x)
    (name,) = self.active_adapters
    a, b = self.lora_A[name].weight, self.lora_B[name].weight
    return _LoraProduct.apply(x, base.weight, base.bias, a, b, self.scaling[name])  # pyright: ignore[reportReturnType]


def use_lean_products(model: nn.Module) -> None:
    """Let every LoRA layer on a plain linear layer compute as above. Its parameters and its files stay PEFT's."""
    for module in model.modules():
        if isinstance(module, LoraLinear) and type(module.get_base_layer()) is nn.Linear:
            module.forward = MethodType(_forward, module)
