"""Frozen layers as one operation each, with gradients written by hand.

A small model is bound by memory, not by products: a layer with its adapter is five operations in
PEFT and a norm is six in transformers, and each writes a tensor as large as the activations, in
both directions. Here each is one, which writes in place what it can. The numbers are the same;
whatever a layer is asked for beyond the ordinary goes the library's own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from unstable.algorithms.forward import (
    compute_hidden_states,
    gpu_kernels,
    kernels_for,
    pack,
    packed_attention,
)

NORMS_AGREE = 1e-5
"""How far a norm may be from what it is taken for."""


def fuse(model: Any) -> int:
    """Replace a model's frozen layers and norms by fused operations; return how many.

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
    if _is_adapted(module):
        return _adapted_forward
    if _is_rms_norm(module):
        return _norm_forward
    return None


def _is_adapted(module: Any) -> bool:
    from peft.tuners.lora.layer import Linear

    return type(module) is Linear and type(module.base_layer) is torch.nn.Linear


# --- linear layers with their adapters --------------------------------------------------------


def _adapted_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out: Tensor
    if args or kwargs or not _can_fuse(layer, x):
        out = type(layer).forward(layer, x, *args, **kwargs)
        return out
    (out,) = _apply_adapted([layer], x)
    return out


def apply_together(layers: Sequence[Any], x: Tensor) -> tuple[Tensor, ...]:
    """Apply layers to the same input, which is read once; so is its gradient written."""
    if all(_is_adapted(layer) and _can_fuse(layer, x) for layer in layers):
        return _apply_adapted(layers, x)
    return tuple(layer(x) for layer in layers)


def _apply_adapted(layers: Sequence[Any], x: Tensor) -> tuple[Tensor, ...]:
    tensors: list[Tensor | None] = []
    scalings = []
    for layer in layers:
        (adapter,) = layer.active_adapters
        base = layer.base_layer
        tensors += [base.weight, base.bias]
        tensors += [layer.lora_A[adapter].weight, layer.lora_B[adapter].weight]
        scalings.append(layer.scaling[adapter])
    narrow = _narrow(layers[0], tensors, scalings)
    outs: tuple[Tensor, ...] = _AdaptedLinears.apply(x, narrow, scalings, *tensors)  # type: ignore[no-untyped-call]
    return outs


@dataclass(frozen=True)
class _Narrow:
    """Adapters in the type of the weights, down projections joined and scaled; made per update."""

    key: tuple[tuple[int, int, float], ...]
    down: Tensor
    ups: tuple[Tensor, ...]


_NARROW: WeakKeyDictionary[Any, dict[int, _Narrow]] = WeakKeyDictionary()
"""By the first layer, and how many follow: not an attribute, which a copy would share."""


def _narrow(keeper: Any, tensors: Sequence[Tensor | None], scalings: Sequence[float]) -> _Narrow:
    downs = [tensor for tensor in tensors[2::4] if tensor is not None]
    ups = [tensor for tensor in tensors[3::4] if tensor is not None]
    key = tuple(
        (tensor.data_ptr(), tensor._version, scale)  # noqa: SLF001 - there is no public name
        for pair, scale in zip(zip(downs, ups, strict=True), scalings, strict=True)
        for tensor in pair
    )
    kept = _NARROW.setdefault(keeper, {})
    if len(downs) not in kept or kept[len(downs)].key != key:
        weight = tensors[0]
        assert weight is not None
        with torch.no_grad(), torch.inference_mode(False):
            scaled = [down * scale for down, scale in zip(downs, scalings, strict=True)]
            kept[len(downs)] = _Narrow(
                key,
                torch.cat(scaled).to(weight.dtype),
                tuple(up.detach().to(weight.dtype) for up in ups),
            )
    return kept[len(downs)]


def _can_fuse(layer: Any, x: Tensor) -> bool:
    """Return whether it is one plain adapter on frozen weights, in one type."""
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


class _AdaptedLinears(torch.autograd.Function):
    """Of each layer `x W' + b + (s x A') B'`, in the type of `W`; gradients of `x`, `A` and `B`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, narrow: _Narrow, scalings: Sequence[float], *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights, biases = tensors[0::4], tensors[1::4]
        first = weights[0]
        assert first is not None
        rows = x.reshape(-1, x.shape[-1]).to(first.dtype)
        low = rows @ narrow.down.t()
        outs, start = [], 0
        for weight, bias, up in zip(weights, biases, narrow.ups, strict=True):
            assert weight is not None
            out = functional.linear(rows, weight, bias)
            out.addmm_(low[:, start : start + up.shape[1]], up.t())
            outs.append(out.view(*x.shape[:-1], out.shape[-1]))
            start += up.shape[1]
        ctx.save_for_backward(rows, low, narrow.down, *weights, *narrow.ups)
        ctx.scalings, ctx.shape, ctx.dtype, ctx.kept = scalings, x.shape, x.dtype, tensors[2].dtype  # type: ignore[union-attr]
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        rows, low, down, *others = ctx.saved_tensors
        count = len(ctx.scalings)
        weights, ups = others[:count], others[count:]
        low_gradient = torch.empty_like(low)
        to_x: Tensor | None = None
        to_ups, start = [], 0
        for gradient, weight, up in zip(gradients, weights, ups, strict=True):
            out = gradient.reshape(-1, weight.shape[0])
            some = slice(start, start + up.shape[1])
            start = some.stop
            torch.mm(out, up, out=low_gradient[:, some])
            to_ups.append((out.t() @ low[:, some]).to(ctx.kept))
            if ctx.needs_input_grad[0]:
                to_x = out @ weight if to_x is None else to_x.addmm_(out, weight)
        if to_x is not None:
            to_x = to_x.addmm_(low_gradient, down).view(ctx.shape).to(ctx.dtype)
        to_down = (low_gradient.t() @ rows).to(ctx.kept)
        to_downs = torch.split(to_down, [up.shape[1] for up in ups])
        result: list[Any] = [to_x, None, None]
        for one, to_up, scale in zip(to_downs, to_ups, ctx.scalings, strict=True):
            result += [None, None, one if scale == 1 else one * scale, to_up]
        return tuple(result)


# --- a norm -----------------------------------------------------------------------------------


def _is_rms_norm(module: Any) -> bool:
    """Return whether a module is a frozen RMS norm, by its name and its output."""
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, Tensor):
        return False
    if weight.dim() != 1 or weight.requires_grad or not hasattr(module, "variance_epsilon"):
        return False
    numbers = torch.linspace(-2, 3, 2 * len(weight), device=weight.device, dtype=weight.dtype)
    numbers = numbers.view(2, -1)
    with torch.no_grad():
        theirs, ours = module(numbers), _norm_forward(module, numbers)
    close = NORMS_AGREE if weight.dtype == torch.float32 else 2e-2
    return bool(torch.allclose(theirs, ours, rtol=close, atol=close))


def _norm_forward(norm: Any, x: Tensor) -> Tensor:
    kernels = kernels_for(x)
    if kernels is not None and not norm.weight.requires_grad:
        by_kernel: Tensor = _KernelNorm.apply(x, norm.weight, norm.variance_epsilon)  # type: ignore[no-untyped-call]
        return by_kernel
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


class _KernelNorm(torch.autograd.Function):
    """The same on a GPU, in whatever type `x` is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        kernels = gpu_kernels()
        assert kernels is not None
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        out: Tensor = kernels.norm(x, weight, epsilon)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        kernels = gpu_kernels()
        assert kernels is not None
        return kernels.norm_backward(gradients[0], x, weight, ctx.epsilon), None, None


PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
BLOCKS_AGREE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
"""How far, relatively, hidden states may be from the library's own."""
TRIED = 12
"""Tokens that they are compared on."""


def fuse_blocks(trunk: Any) -> int:
    """Replace a model's blocks by fused operations; return how many.

    None where that gives other hidden states.
    """
    blocks: list[tuple[Any, Any]] = []
    for layer in getattr(trunk, "layers", ()):
        attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
        if not (_is_known_attention(attention) and _is_known_mlp(mlp)):
            return 0
        blocks += [(attention, _attention_forward), (mlp, _mlp_forward)]
    if not blocks:
        return 0
    theirs = _trial_states(trunk)
    for block, forward in blocks:
        block.forward = MethodType(forward, block)
    ours = _trial_states(trunk)
    if not (ours - theirs).norm() <= BLOCKS_AGREE.get(ours.dtype, 0.0) * theirs.norm():
        for block, _ in blocks:
            del block.forward
        return 0
    return len(blocks)


@torch.no_grad()
def _trial_states(trunk: Any) -> Tensor:
    embedding = trunk.get_input_embeddings()
    tokens = [token % embedding.num_embeddings for token in range(1, TRIED)]
    weight = embedding.weight
    row = pack([tokens, tokens[::2]], weight.device)
    narrow = weight.dtype != torch.float32  # the learner then computes so too
    dtype = weight.dtype if narrow else torch.bfloat16
    with torch.autocast(weight.device.type, dtype, enabled=narrow):
        return compute_hidden_states(trunk, row)


def _is_known_attention(block: Any) -> bool:
    if not isinstance(block, torch.nn.Module):
        return False
    children = dict(block.named_children())
    norms = children.keys() - PROJECTIONS
    return (
        children.keys() >= PROJECTIONS
        and norms in (set(), {"q_norm", "k_norm"})
        and all(_is_rms_norm(children[name]) for name in norms)
        and getattr(block, "sliding_window", None) is None
        and getattr(block, "attn_logit_softcapping", None) is None
        and not any(True for _ in block.parameters(recurse=False))
        and hasattr(block, "scaling")
        and hasattr(block, "head_dim")
    )


def _is_known_mlp(block: Any) -> bool:
    return (
        isinstance(block, torch.nn.Module)
        and {name for name, _ in block.named_children()} == MLP
        and type(block.act_fn).__name__ in ("SiLU", "SiLUActivation")
    )


def _attention_forward(block: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    layout = kwargs.get("packed_layout")
    embeddings = kwargs.get("position_embeddings")
    unusual = args or layout is None or kwargs.get("past_key_values") is not None
    if unusual or embeddings is None or embeddings[0].shape[-1] != block.head_dim:
        return type(block).forward(block, hidden_states, *args, **kwargs)
    layers = (block.q_proj, block.k_proj, block.v_proj)
    heads = (*hidden_states.shape[:-1], -1, block.head_dim)
    query, key, value = (states.view(heads) for states in apply_together(layers, hidden_states))
    query = _rotate_heads(query, getattr(block, "q_norm", None), *embeddings)
    key = _rotate_heads(key, getattr(block, "k_norm", None), *embeddings)
    mixed, _ = packed_attention(
        block,
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        None,
        dropout=block.attention_dropout if block.training else 0.0,
        scaling=block.scaling,
        packed_layout=layout,
    )
    return block.o_proj(mixed.reshape((*hidden_states.shape[:-1], -1))), None


def _mlp_forward(block: Any, x: Tensor) -> Tensor:
    gate, up = apply_together((block.gate_proj, block.up_proj), x)
    gated: Tensor = _Gate.apply(gate, up)  # type: ignore[no-untyped-call]
    out: Tensor = block.down_proj(gated)
    return out


class _Gate(torch.autograd.Function):
    """`silu(gate) * up`."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        kernels = kernels_for(gate)
        if kernels is not None:
            out: Tensor = kernels.gate(gate, up)
            return out
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gate, up = ctx.saved_tensors
        kernels = kernels_for(gate)
        if kernels is not None:
            return kernels.gate_backward(gradients[0], gate, up)
        share = torch.sigmoid(gate)
        to_up = gradients[0] * gate * share
        slope = share * (1 + gate * (1 - share))
        return slope.mul_(gradients[0]).mul_(up), to_up


def _rotate_heads(x: Tensor, norm: Any, cosines: Tensor, sines: Tensor) -> Tensor:
    """Normalise heads, (1, tokens, heads, size), and rotate them to their positions."""
    if kernels_for(x) is not None and (norm is None or not norm.weight.requires_grad):
        weight, epsilon = (None, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
        out: Tensor = _KernelRotated.apply(x, weight, epsilon, cosines, sines)  # type: ignore[no-untyped-call]
        return out
    normed = x if norm is None else norm(x)
    plain: Tensor = _Rotated.apply(normed, cosines[:, :, None], sines[:, :, None])  # type: ignore[no-untyped-call]
    return plain


class _Rotated(torch.autograd.Function):
    """`x cos + turned(x) sin`, where `turned` swaps the halves and negates the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        first, second = x.chunk(2, -1)
        return (x * cosines).addcmul_(torch.cat((-second, first), -1), sines)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        cosines, sines = ctx.saved_tensors
        first, second = (gradients[0] * sines).chunk(2, -1)
        return (gradients[0] * cosines).add_(torch.cat((second, -first), -1)), None, None


class _KernelRotated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, epsilon: float, cosines: Tensor, sines: Tensor
    ) -> Tensor:
        kernels = gpu_kernels()
        assert kernels is not None
        ctx.save_for_backward(x, weight, cosines, sines)
        ctx.epsilon = epsilon
        out: Tensor = kernels.rotate(x, weight, epsilon, cosines, sines)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, cosines, sines = ctx.saved_tensors
        kernels = gpu_kernels()
        assert kernels is not None
        to_x = kernels.rotate_backward(gradients[0], x, weight, ctx.epsilon, cosines, sines)
        return to_x, None, None, None, None
