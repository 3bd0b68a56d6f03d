"""Attention and MLP blocks in few operations, for packed rows.

Queries, keys and values are made together, and so are gate and up. Norm and rotation of a head are
one operation, and so is the gate. What a block is asked for beyond a packed row goes the library's
own way.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unstable.algorithms.forward import hidden_states, pack, packed_attention
from unstable.learners.fused import _is_rms_norm, together
from unstable.utils.gpu_kernels import gpu_kernels, kernels_for

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
AGREE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
"""How far, relatively, hidden states may be from the library's own."""
TRIED = 12
"""Tokens that they are compared on."""


def fuse_blocks(trunk: Any) -> int:
    """Let the blocks of a model compute in few operations; how many do.

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
    theirs = _tried(trunk)
    for block, forward in blocks:
        block.forward = MethodType(forward, block)
    ours = _tried(trunk)
    if not (ours - theirs).norm() <= AGREE.get(ours.dtype, 0.0) * theirs.norm():
        for block, _ in blocks:
            del block.forward
        return 0
    return len(blocks)


@torch.no_grad()
def _tried(trunk: Any) -> Tensor:
    embedding = trunk.get_input_embeddings()
    tokens = [token % embedding.num_embeddings for token in range(1, TRIED)]
    weight = embedding.weight
    row = pack([tokens, tokens[::2]], weight.device)
    narrow = weight.dtype != torch.float32  # the learner then computes so too
    dtype = weight.dtype if narrow else torch.bfloat16
    with torch.autocast(weight.device.type, dtype, enabled=narrow):
        return hidden_states(trunk, row)


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
    query, key, value = (states.view(heads) for states in together(layers, hidden_states))
    query = _rotated(query, getattr(block, "q_norm", None), *embeddings)
    key = _rotated(key, getattr(block, "k_norm", None), *embeddings)
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
    gate, up = together((block.gate_proj, block.up_proj), x)
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


def _rotated(x: Tensor, norm: Any, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads, (1, tokens, heads, size), normed and turned to their positions."""
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
