"""Attention for a batch that changes at every step.

All tokens of a step go through the model as one sequence without padding: first the next token of
every running row, then the prompts of those that join. Only here, inside attention, it matters
which token belongs to which row. Keys and values of a row stay in its row of a `SlotCache`.

Any decoder of `transformers` that takes its attention from `AttentionInterface` can run this way;
it hands the keyword argument `plan` of its forward through to `slot_attention`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NAME = "unstable_slots"
COLUMN_STEP = 64
"""Rows grow by that many columns at least, so that they are seldom copied."""
PADDING = 1.25
"""Prompts are attended to in one block if the longest is at most that much longer."""
UNKNOWN = ("s_aux", "position_bias")
"""What some models give their attention and what is not done here."""


class SlotCache:
    """Keys and values: per layer a tensor (rows, heads, columns, size) each, that grows."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.rows = 0
        self.columns = 0
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, rows: int, columns: int) -> bool:
        """Make room for so many rows of so many tokens, keeping the content.

        Returns:
            Whether it had to move to other memory.
        """
        if rows <= self.rows and columns <= self.columns:
            return False
        if rows > self.rows:
            self.rows = min(max(rows, 2 * self.rows), self.max_rows)
        if columns > self.columns:
            wanted = max(columns, self.columns + self.columns // 2)
            self.columns = -(-wanted // COLUMN_STEP) * COLUMN_STEP
        self.layers = {
            layer: (self._grow(keys), self._grow(values))
            for layer, (keys, values) in self.layers.items()
        }
        return True

    def layer(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values; made at the first call."""
        if layer not in self.layers:
            self.layers[layer] = (self._empty(key), self._empty(value))
        return self.layers[layer]

    def copy(self, source: list[int], target: list[int], columns: int) -> None:
        for pair in self.layers.values():
            for tensor in pair:
                tensor[target, :, :columns] = tensor[source, :, :columns]

    def wipe(self, rows: list[int]) -> None:
        for pair in self.layers.values():
            for tensor in pair:
                tensor[rows] = 0.0

    def _empty(self, like: Tensor) -> Tensor:
        """Return zeros: what was never written is multiplied by zero, and must be finite."""
        _, heads, _, size = like.shape
        return like.new_zeros(self.rows, heads, self.columns, size)

    def _grow(self, old: Tensor) -> Tensor:
        rows, heads, columns, size = old.shape
        new = old.new_zeros(self.rows, heads, self.columns, size)
        new[:rows, :, :columns] = old
        return new


@dataclass
class Prompts:
    """Joining prompts of similar length, as a padded block."""

    block: Tensor
    """(prompts, length): which token of the step stands there; padding repeats the first."""
    tokens: Tensor
    """Which tokens of the step these are ..."""
    places: Tensor
    """... and where each stands in the flattened block."""


@dataclass
class AttentionPlan:
    """Assigns the tokens of a step to rows."""

    cache: SlotCache
    rows: Tensor
    """Per token."""
    positions: Tensor
    """Per token: its place in its own text."""
    reach: int
    """Columns that running rows look at."""
    lengths: Sequence[int] = ()
    """Of the prompts, which stand behind one token of each running row."""
    masks: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)
    """What hides columns from running rows, by sliding window; made when first asked for."""

    @cached_property
    def running(self) -> int:
        """The first tokens are the next ones of rows 0, 1, ... as many as this."""
        return len(self.rows) - sum(self.lengths)

    @cached_property
    def prompts(self) -> list[Prompts]:
        return _make_blocks(self.lengths, self.running, self.rows.device)

    @cached_property
    def bounds(self) -> Tensor:
        """Where prompts begin and end, among themselves."""
        ends = list(accumulate(self.lengths, initial=0))
        return torch.tensor(ends, dtype=torch.int32).to(self.rows.device)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return (running, 1, reach): 0 where a row may look, -inf elsewhere."""
        if (window, dtype) not in self.masks:
            position = self.positions[: self.running, None, None]
            column = torch.arange(self.reach, device=position.device)
            hidden = column > position
            if window is not None:
                hidden = hidden | (column <= position - window)
            empty = torch.zeros(hidden.shape, dtype=dtype, device=position.device)
            self.masks[window, dtype] = empty.masked_fill_(hidden, float("-inf"))
        return self.masks[window, dtype]


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - the plan says who sees what
    plan: AttentionPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention as `transformers` calls it: tensors are (1, heads, tokens, size)."""
    for name in UNKNOWN:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attention with {name}: use the vllm engine")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    keys, values = plan.cache.layer(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    keys[plan.rows, :, plan.positions] = key
    values[plan.rows, :, plan.positions] = value
    parts: list[Tensor] = []
    n = plan.running
    if n:
        seen = (keys[:n, :, : plan.reach], values[:n, :, : plan.reach])
        parts.append(_attend_running(query[:n], *seen, plan, scale, sliding_window, softcap))
    if plan.lengths and _is_flash(query, softcap):
        joining = (query[n:], key[n:], value[n:])
        parts.append(_attend_prompts(*joining, plan, scale, sliding_window))
    elif plan.lengths:
        joined = query.new_empty(len(query) - n, query.shape[1], value.shape[-1])
        for prompts in plan.prompts:
            block = [x[prompts.block].transpose(1, 2) for x in (query, key, value)]
            out = _causal(block[0], block[1], block[2], scale, sliding_window, softcap)
            joined[prompts.tokens - n] = out.transpose(1, 2).flatten(0, 1)[prompts.places]
        parts.append(joined)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _attend_running(
    query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float,
    window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """Attend one token per row to its row; heads that share keys go together."""
    n, heads, columns, size = keys.shape
    if query.is_cuda and softcap is None:  # its kernel needs no copy of the columns in question
        mixed = functional.scaled_dot_product_attention(
            query.reshape(n, heads, -1, size), keys, values, scale=scale,
            attn_mask=plan.mask(window, query.dtype)[:, None].expand(n, heads, -1, columns),
        )  # fmt: skip
        return mixed.reshape(n, -1, values.shape[-1])
    shared = (query * scale).reshape(n * heads, -1, size)
    scores = torch.bmm(shared, keys.reshape(n * heads, columns, size).transpose(1, 2)).float()
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.view(n, -1, columns) + plan.mask(window, scores.dtype)
    weights = scores.softmax(-1).to(values.dtype).view(n * heads, -1, columns)
    mixed = torch.bmm(weights, values.reshape(n * heads, columns, values.shape[-1]))
    return mixed.view(n, -1, values.shape[-1])


def _is_flash(query: Tensor, softcap: float | None) -> bool:
    return query.is_cuda and query.dtype != torch.float32 and softcap is None


def _attend_prompts(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float, window: int | None
) -> Tensor:
    """Attend prompts of any lengths to themselves in one kernel."""
    from torch.nn.attention.varlen import varlen_attn

    longest = max(plan.lengths)
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, dim=1) for x in (key, value))
    back = -1 if window is None else window - 1
    mixed: Tensor = varlen_attn(
        query, key, value, plan.bounds, plan.bounds, longest, longest,
        scale=scale, window_size=(back, 0),
    )  # type: ignore[assignment]  # fmt: skip
    return mixed


def _causal(
    query: Tensor, key: Tensor, value: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """Attend prompts to themselves; padding stands behind, where no token looks."""
    length = query.shape[2]
    if window is not None and window >= length:
        window = None
    if softcap is None and window is None:
        shared = query.shape[1] != key.shape[1]
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, scale=scale, enable_gqa=shared
        )
    place = torch.arange(length, device=query.device)
    distance = place[:, None] - place
    hidden = distance < 0
    if window is not None:
        hidden = hidden | (distance >= window)
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, dim=1) for x in (key, value))
    scores = (query @ key.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).to(value.dtype) @ value


def _make_blocks(lengths: Sequence[int], start: int, device: torch.device) -> list[Prompts]:
    """Group prompts in blocks of similar length; `start` tokens come before them."""
    firsts = list(accumulate(lengths, initial=start))
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if groups and lengths[number] <= PADDING * lengths[groups[-1][0]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [_make_block([firsts[i] for i in g], [lengths[i] for i in g], device) for g in groups]


def _make_block(firsts: list[int], lengths: list[int], device: torch.device) -> Prompts:
    column = torch.arange(max(lengths))
    first, length = torch.tensor(firsts)[:, None], torch.tensor(lengths)[:, None]
    real = column < length
    block = torch.where(real, first + column, first)
    places = real.flatten().nonzero()[:, 0]
    tokens = block.flatten()[places]
    return Prompts(block.to(device), tokens.to(device), places.to(device))


def use_slots(model: Any) -> None:
    """Set a model's attention to slots; raise ValueError if it cannot be chosen."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, slot_attention)
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:  # noqa: SLF001 - there is no public way to ask
        kind = type(model).__name__
        raise ValueError(f"{kind} has an attention of its own: use the vllm engine for it")


_LOG = logging.getLogger(__name__)
APART = 2e-2
"""Of two results in bfloat16 that should be the same, the distance relative to their norm."""


def causal_varlen(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, scale: float | None
) -> Tensor:
    """Attend each sequence to itself.

    Args:
        query: (tokens, heads, size), in half precision.
        key: the same, of as many heads or fewer, each for several of the query's.
        value: as the keys.
        ends: 0 and the end of each sequence, int32.
        longest: tokens of the longest sequence.
        scale: of the products; None: the usual one.
    """
    shared = query.shape[1] // key.shape[1]
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if shared > 1 and not _shares_heads(query.device, learns):
        key, value = (states.repeat_interleave(shared, dim=1) for states in (key, value))
        shared = 1
    return _attend(query, key, value, ends, longest, shared, scale=scale)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, shared: int,
    **options: Any,
) -> Tensor:  # fmt: skip
    from torch.nn.attention.varlen import varlen_attn

    if shared > 1 and "enable_gqa" in signature(varlen_attn).parameters:
        options["enable_gqa"] = True
    out = varlen_attn(
        query, key, value, ends, ends, longest, longest, window_size=(-1, 0), **options
    )
    assert isinstance(out, Tensor)
    return out


@cache
def _shares_heads(device: torch.device, learns: bool) -> bool:
    """Return whether the kernel, or its gradient, is right for heads that share keys and values."""
    reason = _find_sharing_fault(device, learns)
    if reason:
        what = "its gradient" if learns else "attention"
        _LOG.warning("keys and values are repeated for %s on %s: %s", what, device, reason)
    return not reason


def _find_sharing_fault(device: torch.device, learns: bool) -> str:
    with torch.inference_mode(False), torch.enable_grad():
        numbers = torch.linspace(-1.0, 1.0, 8 * 4 * 64, device=device).sin_().view(8, 4, 64)
        queries = numbers.bfloat16().requires_grad_()
        keys = numbers[:, 1::2].cos().bfloat16().requires_grad_()
        bounds = torch.tensor([0, 3, 8], dtype=torch.int32, device=device)
        one_each = keys.repeat_interleave(2, dim=1)
        expected = _attend(queries, one_each, one_each, bounds, 5, 1)
        try:
            shared = _attend(queries, keys, keys, bounds, 5, 2)
            pairs = {"the output": (shared, expected)}
            if learns:
                slopes = (
                    torch.autograd.grad(out.float().square().sum(), [queries, keys])
                    for out in (shared, expected)
                )
                names = ("the queries' gradient", "the keys' gradient")
                pairs |= dict(zip(names, zip(*slopes, strict=True), strict=True))
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    # By the norm: single numbers are as far apart as one rounding of sums in half precision.
    for name, (ours, theirs) in pairs.items():
        apart = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        if not apart <= APART:
            return f"{name} is {apart:.2g} off"
    return ""
