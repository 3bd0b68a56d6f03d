"""Attention for a batch that changes at every step.

All tokens of a step go through the model as one sequence without padding: first the next token of
every running row, then the prompts of those that join. Only here, inside attention, it matters
which token belongs to which row. Keys and values of a row stay in its row of a `SlotCache`.

Any decoder of `transformers` that takes its attention from `AttentionInterface` can run this way;
it hands the keyword argument `plan` of its forward through to `slot_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NAME = "unstable_slots"
COLUMN_STEP = 64
"""Rows grow by that many columns at least, so that they are seldom copied."""
UNKNOWN = ("s_aux", "position_bias")
"""What some models give their attention and what is not done here."""


class SlotCache:
    """Keys and values: per layer a tensor (rows, heads, columns, size) each, that grows."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.rows = 0
        self.columns = 0
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for so many rows of so many tokens; what is there stays."""
        if rows <= self.rows and columns <= self.columns:
            return
        if rows > self.rows:
            self.rows = min(max(rows, 2 * self.rows), self.max_rows)
        if columns > self.columns:
            wanted = max(columns, self.columns + self.columns // 2)
            self.columns = -(-wanted // COLUMN_STEP) * COLUMN_STEP
        self.layers = {
            layer: (self._grown(keys), self._grown(values))
            for layer, (keys, values) in self.layers.items()
        }

    def layer(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values; made for what is to be written when it is first asked for."""
        if layer not in self.layers:
            self.layers[layer] = (self._empty(key), self._empty(value))
        return self.layers[layer]

    def copy(self, source: list[int], target: list[int], columns: int) -> None:
        """Copy the first columns of rows to other rows."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor[target, :, :columns] = tensor[source, :, :columns]

    def wipe(self, rows: list[int]) -> None:
        """Overwrite rows with zeros."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor[rows] = 0.0

    def _empty(self, like: Tensor) -> Tensor:
        """Zeros: what was never written is multiplied by zero, and must be finite for that."""
        _, heads, _, size = like.shape
        return like.new_zeros(self.rows, heads, self.columns, size)

    def _grown(self, old: Tensor) -> Tensor:
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
class Plan:
    """Which token of a step is whose."""

    cache: SlotCache
    rows: Tensor
    """Per token."""
    positions: Tensor
    """Per token: its place in its own text."""
    running: int
    """The first tokens are the next ones of rows 0, 1, ... as many as this."""
    reach: int
    """Columns that running rows look at."""
    prompts: list[Prompts] = field(default_factory=list)
    """All other tokens."""
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    """What hides columns from running rows, by sliding window; made when first asked for."""

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """(running, 1, reach): 0 where a row may look, -inf elsewhere."""
        if window not in self.masks:
            position = self.positions[: self.running, None, None]
            column = torch.arange(self.reach, device=position.device)
            hidden = column > position
            if window is not None:
                hidden = hidden | (column <= position - window)
            empty = torch.zeros(hidden.shape, dtype=dtype, device=position.device)
            self.masks[window] = empty.masked_fill_(hidden, float("-inf"))
        return self.masks[window]


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - the plan says who sees what
    plan: Plan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as `transformers` calls it: tensors are (1, heads, tokens, size)."""
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
        parts.append(_running(query[:n], *seen, plan, scale, sliding_window, softcap))
    if plan.prompts:
        joined = query.new_empty(len(query) - n, query.shape[1], value.shape[-1])
        for prompts in plan.prompts:
            block = [x[prompts.block].transpose(1, 2) for x in (query, key, value)]
            out = _causal(block[0], block[1], block[2], scale, sliding_window, softcap)
            joined[prompts.tokens - n] = out.transpose(1, 2).flatten(0, 1)[prompts.places]
        parts.append(joined)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _running(
    query: Tensor, keys: Tensor, values: Tensor, plan: Plan, scale: float,
    window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """One token per row against all its row holds; heads that share keys go together."""
    n, heads, columns, size = keys.shape
    shared = (query * scale).reshape(n * heads, -1, size)
    scores = torch.bmm(shared, keys.reshape(n * heads, columns, size).transpose(1, 2)).float()
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.view(n, -1, columns) + plan.mask(window, scores.dtype)
    weights = scores.softmax(-1).to(values.dtype).view(n * heads, -1, columns)
    mixed = torch.bmm(weights, values.reshape(n * heads, columns, values.shape[-1]))
    return mixed.view(n, -1, values.shape[-1])


def _causal(
    query: Tensor, key: Tensor, value: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """Prompts against themselves. Padding stands behind, where no token of a prompt looks."""
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


def use_slots(model: Any) -> None:
    """Make a model attend this way. Raises ValueError if it cannot be told to."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, slot_attention)
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:  # noqa: SLF001 - there is no public way to ask
        kind = type(model).__name__
        raise ValueError(f"{kind} has an attention of its own: use the vllm engine for it")
