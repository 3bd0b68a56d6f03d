"""The forward pass: many sequences in one row, and log-probabilities of the tokens that count.

Sequences lie one after the other in a row of tokens, none of which sees another. Attention is
computed per run of equal lengths as a plain causal batch, or by the variable-length kernel on a
GPU: there is no mask that could be wrong, and nothing quadratic in the length of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import accumulate, groupby
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unstable.engines.attention import causal_varlen


@cache
def gpu_kernels() -> ModuleType | None:
    """Return the learner's Triton kernels; None without Triton."""
    try:
        return import_module("unstable.learners.kernels")
    except ModuleNotFoundError:
        return None


def kernels_for(x: Tensor) -> ModuleType | None:
    return gpu_kernels() if x.is_cuda else None


ATTENTION = "unstable_packed"
"""The name under which transformers knows the attention."""


@dataclass(frozen=True)
class SequenceRun:
    """Neighbouring sequences of the same length."""

    start: int
    count: int
    length: int


@dataclass(frozen=True)
class PackedLayout:
    """The places of sequences in a row."""

    runs: tuple[SequenceRun, ...]
    ends: Tensor
    """0 and the end of each sequence, on the device: what the kernel for a GPU asks for."""
    longest: int
    asked: Tensor | None = None
    """Places whose last hidden states are wanted; None: all."""


@dataclass(frozen=True)
class PackedRow:
    """Sequences as a model takes them."""

    input_ids: Tensor
    position_ids: Tensor
    layout: PackedLayout
    starts: tuple[int, ...]
    """Where each sequence begins."""


def pack(sequences: Sequence[Sequence[int]], device: Any = "cpu") -> PackedRow:
    """Lay sequences one after the other in a row; neighbours of equal length are the fastest.

    Raises:
        ValueError: there is none, or one is empty.
    """
    lengths = [len(tokens) for tokens in sequences]
    if not lengths or not all(lengths):
        raise ValueError("a row needs sequences, each with a token at least")
    ends = [0, *accumulate(lengths)]
    runs, start = [], 0
    for length, same in groupby(lengths):
        count = sum(1 for _ in same)
        runs.append(SequenceRun(start, count, length))
        start += count * length
    flat = [token for tokens in sequences for token in tokens]
    positions = torch.cat([torch.arange(run.length).repeat(run.count) for run in runs])
    layout = PackedLayout(
        tuple(runs), torch.tensor(ends, dtype=torch.int32, device=device), max(lengths)
    )
    return PackedRow(
        as_tensor(flat, np.int64, device)[None],
        positions[None].to(device),
        layout,
        tuple(ends[:-1]),
    )


def as_tensor(values: Sequence[float], dtype: Any, device: Any) -> Tensor:
    """Copy numbers to a device, through NumPy, which reads lists faster than torch."""
    return torch.from_numpy(np.array(values, dtype)).to(device)


def compute_hidden_states(
    trunk: Any, row: PackedRow, *, asked: Tensor | None = None, use_cache: bool = False
) -> Tensor:
    """Return the last hidden state of every token of the row, (tokens, hidden).

    Where `asked` says which places matter, what stands in the others means nothing.
    """
    # A mask of four dimensions is taken as it is: the layout says it all, so none is built.
    no_mask = torch.zeros((1, 1, 1, 1), device=row.input_ids.device)
    out = trunk(
        input_ids=row.input_ids,
        position_ids=row.position_ids,
        attention_mask=no_mask,
        use_cache=use_cache,
        packed_layout=row.layout if asked is None else replace(row.layout, asked=asked),
    )
    states: Tensor = out.last_hidden_state[0]
    return states


def use_packed_attention(model: Any) -> None:
    """Replace a model's attention by packed attention; without a layout it attends as usual.

    Raises:
        ValueError: the model's attention cannot be replaced.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
    if model.config._attn_implementation != ATTENTION:  # noqa: SLF001 - there is no public name
        raise ValueError(
            f"{type(model).__name__} does not let its attention be chosen, so sequences cannot be"
            " packed; use a model whose code is part of transformers"
        )


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed_layout: PackedLayout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers calls it; tensors are (1, heads, tokens, size)."""
    if packed_layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return attended
    for unknown in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(unknown) is not None:
            raise ValueError(f"{type(module).__name__} attends with {unknown}: it cannot be packed")
    window = kwargs.get("sliding_window")
    if window is not None and window >= packed_layout.longest:
        window = None
    grouped = query.shape[1] != key.shape[1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and half and not dropout and not window:
        return _run_kernel(query, key, value, packed_layout, scaling), None
    parts = []
    # Split, not sliced: the gradient of many slices is as many tensors as long as the row.
    sizes = [run.count * run.length for run in packed_layout.runs]
    rows = zip(*(torch.split(states[0], sizes, 1) for states in (query, key, value)), strict=True)
    for run, (queries, keys, values) in zip(packed_layout.runs, rows, strict=True):
        mask = None if window is None else _band(run.length, window, query.device)
        out = functional.scaled_dot_product_attention(
            _batch(queries, run),
            _batch(keys, run),
            _batch(values, run),
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[None], None


def _batch(states: Tensor, run: SequenceRun) -> Tensor:
    """Return a run's states, (heads, tokens, size), as (count, heads, length, size): a view."""
    heads, _, size = states.shape
    return states.view(heads, run.count, run.length, size).transpose(0, 1)


def _band(length: int, window: int, device: torch.device) -> Tensor:
    position = torch.arange(length, device=device)
    back = position[:, None] - position[None, :]
    return (back >= 0) & (back < window)


def _run_kernel(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scaling: float | None
) -> Tensor:
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return causal_varlen(query, key, value, layout.ends, layout.longest, scaling)[None]


def skip_unasked(trunk: Any) -> bool:
    """Make the last layer skip tokens outside `PackedLayout.asked`; return whether it can.

    Hooks, not a new `forward`: they are run again where a layer is computed again for its gradient,
    and a copy of the model has its own.
    """
    layers = getattr(trunk, "layers", None)
    if not layers or not isinstance(getattr(layers[-1], "mlp", None), torch.nn.Module):
        return False
    last = layers[-1]
    last.mlp.asked = None
    last.register_forward_pre_hook(_store_asked, with_kwargs=True)
    last.mlp.register_forward_pre_hook(_take)
    last.mlp.register_forward_hook(_restore_places)
    return True


def _store_asked(layer: Any, args: Any, kwargs: dict[str, Any]) -> None:
    del args
    layout = kwargs.get("packed_layout")
    layer.mlp.asked = None if layout is None else layout.asked


def _take(mlp: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if mlp.asked is None:
        return None
    mlp.tokens = args[0].shape[1]
    return (args[0][:, mlp.asked], *args[1:])


def _restore_places(mlp: Any, args: Any, out: Tensor) -> Tensor | None:
    del args
    if mlp.asked is None:
        return None
    full = out.new_zeros((out.shape[0], mlp.tokens, out.shape[2]))
    return full.index_copy(1, mlp.asked, out)


LOGITS_AT_ONCE = 2**25
"""Logits that exist at the same time: 134 MB in float32."""
KERNEL_ROWS = 4
"""By how much more rows of logits are computed at once where a kernel deals with them."""
TILE = 128
"""Of products on a GPU: rows are a multiple of it."""


def find_trunk(model: Any) -> Any:
    causal = _causal(model)
    return getattr(causal, causal.base_model_prefix)


def _causal(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def trunk_and_head(model: Any) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Return a causal language model's trunk, up to the hidden states, and its head, to logits.

    Raises:
        ValueError: its logits are made in a way that is not known here.
    """
    causal, trunk = _causal(model), find_trunk(model)
    head = causal.get_output_embeddings()
    config = causal.config.get_text_config()
    for unknown in ("logit_scale", "logits_scaling"):
        if getattr(config, unknown, None) not in (None, 1, 1.0):
            raise ValueError(f"{type(causal).__name__} scales its logits by {unknown}")
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is None:
        return trunk, head
    return trunk, lambda hidden: torch.tanh(head(hidden) / cap) * cap


def token_logprobs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    temperatures: Tensor | None = None,
    *,
    entropy: bool = False,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Tensor, Tensor | None]:
    """Compute the log-probability of each target token after its hidden state.

    The projection to the vocabulary is done in chunks, so that no more than `logits_at_once` logits
    exist at any time. Where the head is trained or the entropy is wanted, it is done again for the
    gradient.

    Args:
        hidden: (tokens, hidden), of the position before each target.
        head: from hidden states to logits.
        targets: token ids.
        temperatures: what the logits of each are divided by; None: by 1.
        entropy: give the entropy of each distribution too.
        logits_at_once: how large a chunk may get.
    """
    size = getattr(head, "out_features", None) or head(hidden[:1].detach()).shape[-1]
    rows = max(1, logits_at_once // size)
    if temperatures is None:
        temperatures = torch.ones(len(targets), device=hidden.device)
    if not entropy and _is_frozen_linear(head):
        logp: Tensor = _FrozenHead.apply(hidden, head, targets, temperatures, rows)  # type: ignore[no-untyped-call]
        return logp, None
    if len(targets) <= rows:
        return _chunk(hidden, targets, temperatures, head, entropy)
    logps, entropies = [], []
    for start in range(0, len(targets), rows):
        some = slice(start, start + rows)
        part, spread = checkpoint(
            _chunk, hidden[some], targets[some], temperatures[some], head, entropy,
            use_reentrant=False,
        )  # fmt: skip
        logps.append(part)
        entropies.append(spread)
    return torch.cat(logps), torch.cat(entropies) if entropy else None


def _chunk(
    hidden: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    head: Callable[[Tensor], Tensor],
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden).float() / temperatures[:, None]
    norm = logits.logsumexp(-1)
    logp = logits.gather(-1, targets[:, None])[:, 0] - norm
    if not entropy:
        return logp, None
    return logp, norm - (torch.softmax(logits, -1) * logits).sum(-1)


def _is_frozen_linear(head: Callable[[Tensor], Tensor]) -> bool:
    return type(head) is torch.nn.Linear and not any(p.requires_grad for p in head.parameters())


def _softmax(
    logits: Tensor, targets: Tensor, temperatures: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return targets' log-probabilities, exponentials of the shifted logits, and their sums."""
    logits = logits.float().div_(temperatures[:, None])  # in place: it is the largest of all
    chosen = logits.gather(-1, targets[:, None])[:, 0]
    most = logits.amax(-1, keepdim=True)
    mass = logits.sub_(most).exp_()
    total = mass.sum(-1)
    return chosen - most[:, 0] - total.log(), mass, total


class _FrozenHead(torch.autograd.Function):
    """Values and gradients of a chunk from one projection.

    The gradient of a token's log-probability is the row of its own weights less the mean of all
    rows by probability, over the temperature. It does not depend on the loss, so it is there
    before the loss is known, and it is as small as the hidden state.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: torch.nn.Linear, targets: Tensor, temperatures: Tensor,
        rows: int,
    ) -> Any:  # fmt: skip
        weight = head.weight
        logps, slopes = [], []
        kernels = kernels_for(hidden)
        if kernels is not None:  # it needs no logits in float32, so there is room for more rows
            rows = KERNEL_ROWS * rows
            rows -= rows % TILE if rows > TILE else 0
        for start in range(0, len(targets), rows):
            some = slice(start, start + rows)
            logits = head(hidden[some])
            if kernels is not None:
                logp, total = kernels.softmax_(logits, targets[some], temperatures[some])
                mass = logits
            else:
                logp, mass, total = _softmax(logits, targets[some], temperatures[some])
            logps.append(logp)
            if ctx.needs_input_grad[0]:
                mean = (mass.to(weight.dtype) @ weight).float() / total[:, None]
                slope = weight[targets[some]].float() - mean
                slopes.append(slope / temperatures[some, None])
        if slopes:
            ctx.save_for_backward(torch.cat(slopes))
        ctx.dtype = hidden.dtype
        return torch.cat(logps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (slopes,) = ctx.saved_tensors
        return (gradients[0][:, None] * slopes).to(ctx.dtype), None, None, None, None
