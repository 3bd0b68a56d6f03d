"""Frozen layers as one operation each, with gradients written by hand.

A small model is bound by memory, not by products: a layer with its adapter is five operations in
PEFT and a norm is six in transformers, and each writes a tensor as large as the activations, in
both directions. Here each is one, which writes in place what it can. The numbers are the same;
whatever a layer is asked for beyond the ordinary goes the library's own way.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

AGREE = 1e-5
"""How far a norm may be from what it is taken for."""


def fuse(model: Any) -> int:
    """Let a model's frozen layers and norms compute in one operation each; how many do.

    A copy of the model stays whole: its layers are the copy's own.
    """
    replaced = 0
    for module in model.modules():
        forward = _forward_for(module)
        if forward is not None:
            module.forward = MethodType(forward, module)
            replaced += 1
    return replaced


def _forward_for(module: Any) -> Any:
    from peft.tuners.lora.layer import Linear

    if type(module) is Linear and type(module.base_layer) is torch.nn.Linear:
        return _adapted_forward
    if _is_rms_norm(module):
        return _norm_forward
    return None


# --- a linear layer with its adapter ----------------------------------------------------------


def _adapted_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out: Tensor
    if args or kwargs or not _is_ordinary(layer, x):
        out = type(layer).forward(layer, x, *args, **kwargs)
        return out
    (adapter,) = layer.active_adapters
    base = layer.base_layer
    out = _AdaptedLinear.apply(  # type: ignore[no-untyped-call]
        x,
        base.weight,
        base.bias,
        layer.lora_A[adapter].weight,
        layer.lora_B[adapter].weight,
        layer.scaling[adapter],
    )
    return out


def _is_ordinary(layer: Any, x: Tensor) -> bool:
    """One plain adapter in use, over frozen weights, and one type to compute in."""
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return False
    adapter = layer.active_adapters[0]
    if adapter not in layer.lora_A or adapter in layer.lora_variant:
        return False
    down, up, base = layer.lora_A[adapter], layer.lora_B[adapter], layer.base_layer
    drops = layer.training and getattr(layer.lora_dropout[adapter], "p", 0.0) > 0
    biased = down.bias is not None or up.bias is not None
    if drops or biased or any(parameter.requires_grad for parameter in base.parameters()):
        return False
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return bool(base.weight.dtype == torch.get_autocast_dtype(kind))
    return bool(x.dtype == base.weight.dtype == down.weight.dtype == up.weight.dtype)


class _AdaptedLinear(torch.autograd.Function):
    """`x W' + b + s (x A') B'`, in the type of `W`; gradients of `x`, `A` and `B`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor,
        scaling: float,
    ) -> Tensor:  # fmt: skip
        rows = x.reshape(-1, x.shape[-1]).to(weight.dtype)
        narrow_down, narrow_up = down.to(weight.dtype), up.to(weight.dtype)
        low = rows @ narrow_down.t()
        out = functional.linear(rows, weight, bias)
        out.addmm_(low, narrow_up.t(), alpha=scaling)
        ctx.save_for_backward(rows, low, weight, narrow_down, narrow_up)
        ctx.scaling, ctx.shape, ctx.dtype, ctx.kept = scaling, x.shape, x.dtype, down.dtype
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        rows, low, weight, down, up = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, weight.shape[0])
        low_gradient = (gradient @ up).mul_(ctx.scaling)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (gradient @ weight).addmm_(low_gradient, down)
            to_x = to_x.view(ctx.shape).to(ctx.dtype)
        to_down = (low_gradient.t() @ rows).to(ctx.kept)
        to_up = (gradient.t() @ low).mul_(ctx.scaling).to(ctx.kept)
        return to_x, None, None, to_down, to_up, None


# --- a norm -----------------------------------------------------------------------------------


def _is_rms_norm(module: Any) -> bool:
    """Whether a module is a frozen RMS norm, by its name and by what it says to numbers."""
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, Tensor):
        return False
    if weight.dim() != 1 or weight.requires_grad or not hasattr(module, "variance_epsilon"):
        return False
    numbers = torch.linspace(-2, 3, 2 * len(weight), device=weight.device, dtype=weight.dtype)
    numbers = numbers.view(2, -1)
    with torch.no_grad():
        theirs, ours = module(numbers), _norm_forward(module, numbers)
    close = AGREE if weight.dtype == torch.float32 else 2e-2
    return bool(torch.allclose(theirs, ours, rtol=close, atol=close))


def _norm_forward(norm: Any, x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or norm.weight.requires_grad:
        return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
    out: Tensor = _Norm.apply(x, norm.weight, norm.variance_epsilon)  # type: ignore[no-untyped-call]
    return out


class _Norm(torch.autograd.Function):
    """`w x / rms(x)` for frozen `w`; the gradient of `x`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        size = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size)
        scale = scale.add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, scale, weight)
        out: Tensor = (x * scale).mul_(weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, scale, weight = ctx.saved_tensors
        weighed = gradients[0] * weight
        pull = torch.linalg.vecdot(weighed, x)[..., None].mul_(scale**3).div_(-x.shape[-1])
        return weighed.mul_(scale).addcmul_(x, pull), None, None
