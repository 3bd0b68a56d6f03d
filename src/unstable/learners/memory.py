"""What of a learner's settings fits into the memory of a GPU, the fastest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

Auto = Literal["auto"]
LEAST_PACK_TOKENS, MOST_PACK_TOKENS = 512, 16_384
"""Less than this is slow, and more is hardly faster."""
ENOUGH_TOKENS = 8192
"""Passes of so many are worth more than computing nothing twice."""
LOGITS_BYTES = 2**30
"""Logits of a chunk in several types, and what is there for a moment."""
WAYS = ((False, False), (False, True), (True, False), (True, True))
"""Activation and gradient checkpointing by speed: computing layers again costs a forward pass, and
blocks within them another."""
BYTES = 2
"""Of a number that is kept for the gradient."""
TRAINED_BYTES = 12
"""Of a trained weight beside itself: its gradient and two moments, float32."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of a token in a layer, and the layers."""

    hidden: int
    attention: int
    keys: int
    intermediate: int
    layers: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = getattr(config, "num_key_value_heads", None) or heads
        return cls(
            config.hidden_size, heads * size, keys * size, config.intermediate_size,
            config.num_hidden_layers,
        )  # fmt: skip

    @property
    def attention_block(self) -> int:
        """Kept within it: before and after the rotation, values, and what is attended."""
        return 3 * self.attention + 3 * self.keys

    @property
    def mlp_block(self) -> int:
        return 3 * self.intermediate

    @property
    def around_blocks(self) -> int:
        """Both sums and both norms."""
        return 4 * self.hidden

    @property
    def gradients(self) -> int:
        """There at the most, within an MLP: those of gate and up, of what comes in and goes out."""
        return 2 * self.intermediate + 2 * self.hidden


@dataclass(frozen=True)
class MemoryPlan:
    """Settings of a learner."""

    activation_checkpointing: bool
    gradient_checkpointing: bool
    pack_tokens: int
    """Tokens of a pass."""
    max_train_len: int | None
    """None: nothing has to be cut off."""
    fits: int
    """Tokens that a pass could have."""

    def __str__(self) -> str:
        def switch(on: bool) -> str:
            return "on" if on else "off"

        cut = "whole sequences" if self.max_train_len is None else f"{self.max_train_len} tokens"
        return (
            f"activation checkpointing {switch(self.activation_checkpointing)}, gradient"
            f" checkpointing {switch(self.gradient_checkpointing)}, passes of"
            f" {self.pack_tokens} tokens, trained on {cut}"
        )


def bytes_per_token(
    sizes: Sizes, *, activation_checkpointing: bool, gradient_checkpointing: bool
) -> float:
    """About what a pass holds of each token at its most."""
    blocks = sizes.attention_block + sizes.mlp_block
    layer = sizes.around_blocks + (0 if activation_checkpointing else blocks)
    # One block at a time is computed again where it was not kept, and has gradients beside it.
    block = max(sizes.attention_block, sizes.mlp_block) if activation_checkpointing else 0
    if gradient_checkpointing:
        return BYTES * (sizes.hidden * sizes.layers + layer + block + sizes.gradients)
    return BYTES * (layer * sizes.layers + block + sizes.gradients)


def plan_memory(
    config: Any,
    free: float,
    trained: int,
    *,
    activation_checkpointing: bool | Auto = "auto",
    gradient_checkpointing: bool | Auto = "auto",
    max_train_len: int | Auto | None = "auto",
    pack_tokens: int | None = None,
) -> MemoryPlan:
    """The fastest settings for passes of ENOUGH_TOKENS; if none is enough, those that fit most.

    Args:
        config: of the model.
        free: bytes for everything that a pass needs, the optimiser's included.
        trained: weights that are trained.
        activation_checkpointing: as it is set, or `auto`.
        gradient_checkpointing: the same.
        max_train_len: the same; `auto`: what a pass can have, where that is less than is common.
        pack_tokens: as it is set; None: as many as fit, within bounds.
    """
    room = max(0.0, free - TRAINED_BYTES * trained - LOGITS_BYTES)
    sizes = Sizes.of(config)
    asked = (activation_checkpointing, gradient_checkpointing)
    allowed = [
        way for way in WAYS if all(a in ("auto", b) for a, b in zip(asked, way, strict=True))
    ]
    fits = 0
    for activation, gradient in allowed:
        cost = bytes_per_token(
            sizes, activation_checkpointing=activation, gradient_checkpointing=gradient
        )
        fits = int(room / cost)
        if fits >= (pack_tokens or ENOUGH_TOKENS):
            break
    if pack_tokens is None:
        pack_tokens = max(LEAST_PACK_TOKENS, min(fits, MOST_PACK_TOKENS))
    if max_train_len == "auto":
        longest = getattr(config, "max_position_embeddings", None) or MOST_PACK_TOKENS
        cut = max(LEAST_PACK_TOKENS, fits)
        max_train_len = None if cut >= min(longest, 2 * MOST_PACK_TOKENS) else cut
    return MemoryPlan(activation, gradient, pack_tokens, max_train_len, fits)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a GPU, within what this process may take."""
    free, total = torch.cuda.mem_get_info(device)
    reserved, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    free += reserved - used
    share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    if share is None:
        return free
    # It wants a device's number, which plain "cuda" has not.
    numbered = device if ":" in str(device) else f"cuda:{torch.cuda.current_device()}"
    return min(free, int(share(numbered) * total) - used)
