"""A decoder of the usual shape (Llama, Qwen, Mistral, SmolLM) in few operations per layer.

Layers over the same input are one product; norms, rotation, the gate and attention are one kernel
each. Adapters cost little: their down projections are more columns of the product, and what their
up projections add is added where the product is read. The model's own weights become views.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unstable.engines.adapters import Adapter
from unstable.engines.attention import causal_varlen
from unstable.engines.pages import PAGE, PagePool

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
FIXED_ROTATION = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding that do not depend on the length of the text."""
LEAST_RANK = 16
LEAST_TILE = 16
"""Columns of queries, keys and values have to be cut into equal tiles of that many at least."""
AGREE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
"""How far, relatively, logits may be from the model's own; each layer rounds the states twice."""


@dataclass(frozen=True)
class TokenBatch:
    """Assigns tokens to rows."""

    positions: Tensor
    """Of each token in its text, int32; -1: an idle row."""
    rows: Tensor
    """Of each token, int32: whose pages are its own."""
    table: Tensor
    """(rows, pages): addresses."""
    whose: Tensor | None = None
    """Of each token, int32: the slot of its adapter, or -1; None: no token has one."""
    lengths: Sequence[int] | None = None
    """Of prompts, one after the other; None: it is the next token of each row."""


class LinearGroup:
    """Linear layers over the same input."""

    def __init__(self, names: Sequence[str], linears: Sequence[nn.Linear]) -> None:
        self.names = tuple(names)
        self.sizes = tuple(linear.out_features for linear in linears)
        self.width = sum(self.sizes)
        self.up: Tensor | None = None
        """(ranks, columns)"""
        self._linears = tuple(linears)
        biases: list[Tensor | None] = [linear.bias for linear in linears]
        present = [bias.data for bias in biases if bias is not None]
        self._bias = torch.cat(present) if present else None
        self._weight = linears[0].weight.data
        if len(linears) > 1:
            self._move(torch.cat([linear.weight.data for linear in linears]))

    def _move(self, weight: Tensor) -> None:
        self._weight = weight
        parts = torch.split(weight[: self.width], list(self.sizes))
        for linear, part in zip(self._linears, parts, strict=True):
            linear.weight.data = part

    def reserve(self, ranks: int) -> None:
        """Make room for so many ranks, all of them zero."""
        with torch.inference_mode(False), torch.no_grad():  # weights are ordinary tensors
            self._reserve(ranks)

    def _reserve(self, ranks: int) -> None:
        shape = (self.width + len(self.sizes) * ranks, self._weight.shape[1])
        weight = self._weight.new_zeros(shape)
        weight[: self.width] = self._weight[: self.width]
        self._move(weight)
        if self._bias is not None:
            bias = self._bias.new_zeros(len(weight))
            bias[: self.width] = self._bias[: self.width]
            self._bias = bias
        self.up = weight.new_zeros(ranks, self.width)

    def put(self, adapter: Adapter, first: int, rank: int) -> None:
        """Write an adapter to the ranks from `first` on; `rank` of them are its own."""
        assert self.up is not None
        start = 0
        for number, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
            row = self.width + number * len(self.up) + first
            down, up = self._weight[row : row + rank], self.up[first : first + rank]
            down.zero_()
            up[:, start : start + size].zero_()
            if name in adapter.down:
                own = len(adapter.down[name])
                down[:own] = adapter.down[name]
                up[:own, start : start + size] = adapter.up[name].T
            start += size

    def __call__(self, x: Tensor, adapted: bool) -> Tensor:
        """Return (tokens, columns of all layers), followed by the ranks of each if `adapted`."""
        if adapted and self.up is not None:
            return functional.linear(x, self._weight, self._bias)
        bias = None if self._bias is None else self._bias[: self.width]
        return functional.linear(x, self._weight[: self.width], bias)


@dataclass(frozen=True)
class _Layer:
    qkv: LinearGroup
    out: LinearGroup
    gate_up: LinearGroup
    down: LinearGroup
    norm: Any
    mlp_norm: Any
    qk_norms: tuple[Tensor, Tensor, float] | None
    scale: float

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        return (self.qkv, self.out, self.gate_up, self.down)


class FusedModel:
    """Runs tokens through a model; `fused` makes one, where it can.

    Args:
        model: a causal language model of `transformers` of the known shape.
        max_length: of a text.
        ops: the module with the kernels.
    """

    def __init__(self, model: Any, max_length: int, ops: ModuleType) -> None:
        self.ops = ops
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        names = {module: name for name, module in model.named_modules()}
        trunk = getattr(model, model.base_model_prefix)

        def group(*linears: nn.Linear) -> LinearGroup:
            return LinearGroup([names[linear] for linear in linears], linears)

        self.embedding: nn.Embedding = model.get_input_embeddings()
        self.layers: list[_Layer] = []
        for layer in trunk.layers:
            attention, mlp = layer.self_attn, layer.mlp
            norms = None
            if hasattr(attention, "q_norm"):
                q, k = attention.q_norm, attention.k_norm
                norms = (q.weight.data, k.weight.data, q.variance_epsilon)
            self.layers.append(
                _Layer(
                    group(attention.q_proj, attention.k_proj, attention.v_proj),
                    group(attention.o_proj),
                    group(mlp.gate_proj, mlp.up_proj),
                    group(mlp.down_proj),
                    layer.input_layernorm,
                    layer.post_attention_layernorm,
                    norms,
                    attention.scaling,
                )
            )
        self.norm = trunk.norm
        self.head = group(model.get_output_embeddings())
        self.vocabulary = self.head.width
        size: int = trunk.layers[0].self_attn.head_dim
        q_size, kv_size, _ = self.layers[0].qkv.sizes
        self.heads = (q_size // size, kv_size // size, size)
        self.intermediate = self.layers[0].gate_up.sizes[0]
        self.rotary = _make_rotary(trunk, max_length, self.device, self.dtype)
        self.bank = AdapterBank([*(g for one in self.layers for g in one.groups), self.head])

    def pool(self) -> PagePool:
        _, kv_heads, size = self.heads
        return PagePool(len(self.layers), kv_heads, size, self.dtype, self.device)

    def __call__(
        self, tokens: Tensor, batch: TokenBatch, pool: PagePool, keep: Tensor | None = None
    ) -> Tensor:
        """Compute logits of the tokens in `keep`, or of all: (tokens, the vocabulary and more)."""
        ops, rank = self.ops, self.bank.rank
        whose, adapted = batch.whose, batch.whose is not None

        def product(group: LinearGroup, x: Tensor, whose: Tensor | None) -> Tensor:
            out = group(x, adapted)
            if whose is not None and group.up is not None:
                ops.expand(out, group.up, whose, group.sizes, rank)
            return out

        hidden = self.embedding(tokens)
        bounds = None
        if batch.lengths is not None:
            ends = torch.tensor([0, *batch.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            bounds = send_to_device(ends, self.device)
        delta: Tensor | None = None
        for number, layer in enumerate(self.layers):
            x = ops.add_norm(hidden, delta, layer.norm.weight, layer.norm.variance_epsilon)
            qkv = product(layer.qkv, x, whose)
            queries, keys = ops.rotate_and_store(
                qkv, self.heads, layer.qk_norms, self.rotary, batch.positions, batch.rows,
                batch.table, pool, number, bounds is not None,
            )  # fmt: skip
            if bounds is None:
                mixed = ops.attend(
                    queries, self.heads[1], batch.positions, batch.table, pool, number, layer.scale
                )
            else:
                q_heads, kv_heads, size = self.heads
                start = (q_heads + kv_heads) * size
                values = qkv[:, start : start + kv_heads * size].view(-1, kv_heads, size)
                mixed = _causal(queries, keys, values, bounds, batch.lengths or (), layer.scale)
            delta = product(layer.out, mixed.flatten(1), whose)
            delta = delta[:, : hidden.shape[1]]
            x = ops.add_norm(hidden, delta, layer.mlp_norm.weight, layer.mlp_norm.variance_epsilon)
            both = layer.gate_up(x, adapted)
            x = ops.gate(both, self.intermediate, layer.gate_up.up, whose, rank)
            delta = product(layer.down, x, whose)[:, : hidden.shape[1]]
        if keep is not None:
            hidden, whose = hidden[keep], None if whose is None else whose[keep]
            delta = None if delta is None else delta[keep]
        x = ops.add_norm(hidden, delta, self.norm.weight, self.norm.variance_epsilon)
        return product(self.head, x, whose)


def send_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for its work."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _causal(
    queries: Tensor, keys: Tensor, values: Tensor, bounds: Tensor, lengths: Sequence[int],
    scale: float,
) -> Tensor:  # fmt: skip
    """Attend prompts to themselves."""
    shared = queries.shape[1] // keys.shape[1]
    if queries.is_cuda and queries.dtype != torch.float32:
        return causal_varlen(queries, keys, values, bounds, max(lengths), scale)
    split = zip(
        *(torch.split(x.transpose(0, 1), list(lengths), 1) for x in (queries, keys, values)),
        strict=True,
    )
    parts = [
        functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=shared > 1
        )
        for q, k, v in split
    ]
    return torch.cat(parts, 2)[0].transpose(0, 1)


def _make_rotary(
    trunk: Any, max_length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    positions = torch.arange(max_length, device=device)[None]
    cosines, sines = trunk.rotary_emb(torch.zeros(1, device=device, dtype=dtype), positions)
    return cosines[0].contiguous(), sines[0].contiguous()


# --- adapters -----------------------------------------------------------------------------------


class AdapterBank:
    """Adapters in slots of equal rank, side by side in every group of layers.

    Weights of an adapter that takes another's slot are written over it, so that recorded steps stay
    valid; they do not when there must be more slots, or larger ones.
    """

    def __init__(self, groups: Sequence[LinearGroup]) -> None:
        self.rank = LEAST_RANK
        self._groups = groups
        self._by_name = {name: group for group in groups for name in group.names}
        self._slots: list[Adapter | None] = []

    def slot(self, adapter: Adapter | None) -> int:
        return -1 if adapter is None else self._slots.index(adapter)

    def reserve(self, like: Adapter, count: int) -> None:
        """Make slots for so many adapters of that shape, which then move nothing."""
        self.rank = max(self.rank, _round_to_power_of_2(like.rank))
        count = max(2, _round_to_power_of_2(count))
        self._slots.extend([None] * (count - len(self._slots)))
        for group in dict.fromkeys(self._by_name[name] for name in like.down):
            group.reserve(self.rank * len(self._slots))

    def hold(self, adapters: Iterable[Adapter]) -> bool:
        """Load these adapters into slots; return whether anything had to move."""
        needed = dict.fromkeys(adapters)
        new = [adapter for adapter in needed if adapter not in self._slots]
        if not new:
            return False
        rank = max(self.rank, *(_round_to_power_of_2(adapter.rank) for adapter in new))
        count = max(2, _round_to_power_of_2(len(needed)))
        untouched = [
            group
            for adapter in new
            for group in {self._by_name[name]: None for name in adapter.down}
            if group.up is None
        ]
        grows = rank > self.rank or count > len(self._slots)
        if grows:
            self.rank = rank
            self._slots.extend([None] * (count - len(self._slots)))
            untouched += [group for group in self._groups if group.up is not None]
        for group in dict.fromkeys(untouched):
            group.reserve(self.rank * len(self._slots))
        places = (place for place, held in enumerate(self._slots) if held not in needed)
        for adapter in new:
            self._slots[next(places)] = adapter
        for slot, held in enumerate(self._slots):
            if held is not None and (untouched or held in new):
                for group in self._groups:
                    if group.up is not None:
                        group.put(held, slot * self.rank, self.rank)
        return bool(untouched)


def _round_to_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


# --- which models -------------------------------------------------------------------------------


def fuse_model(model: Any, max_length: int, ops: ModuleType) -> FusedModel | None:
    """Fuse a model's operations; None if its shape is unknown or its numbers would differ."""
    if not _is_known(model):
        return None
    count = min(PAGE // 2, max_length)
    tokens = torch.arange(1, count + 1, device=model.device) % model.config.vocab_size
    with torch.no_grad():
        theirs = model(tokens[None], use_cache=False).logits[0].float()
        one = FusedModel(model, max_length, ops)
        pool = one.pool()
        positions = torch.arange(len(tokens), device=model.device, dtype=torch.int32)
        table = torch.tensor([[pool.take()]], device=model.device)
        batch = TokenBatch(positions, torch.zeros_like(positions), table, None, [len(tokens)])
        ours = one(tokens, batch, pool).float()
        distance = (ours - theirs).norm() / theirs.norm()
    return one if bool(distance < AGREE.get(one.dtype, 0.0)) else None


def _is_known(model: Any) -> bool:
    trunk = getattr(model, model.base_model_prefix, None)
    if trunk is None or not all(hasattr(trunk, name) for name in ("layers", "norm", "rotary_emb")):
        return False
    head = model.get_output_embeddings()
    rotation = getattr(trunk.rotary_emb, "rope_type", None)
    return (
        rotation in FIXED_ROTATION
        and type(head) is nn.Linear
        and type(model.get_input_embeddings()) is nn.Embedding
        and all(_is_known_layer(layer) for layer in trunk.layers)
    )


def _is_known_layer(layer: Any) -> bool:
    parts = dict(layer.named_children())
    if set(parts) != LAYER:
        return False
    attention, mlp = dict(layer.self_attn.named_children()), dict(layer.mlp.named_children())
    linears = [*attention.values(), *mlp.values()]
    linears = [m for m in linears if isinstance(m, nn.Linear)]
    return (
        set(attention) in (ATTENTION, ATTENTION | NORMS)
        and set(mlp) == MLP
        and type(layer.mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and len(linears) == 7
        and all(type(linear) is nn.Linear for linear in linears)
        and math.gcd(*(linear.out_features for linear in linears[:3]), LEAST_TILE) == LEAST_TILE
        and getattr(layer.self_attn, "sliding_window", None) is None
        and hasattr(layer.input_layernorm, "variance_epsilon")
        and layer.self_attn.head_dim % 2 == 0
        and len({linear.bias is None for linear in linears[:3]}) == 1
    )
