"""Log-probabilities of the tokens that count, without the logits of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

LOGITS_AT_ONCE = 2**25
"""Logits that exist at the same time: 134 MB in float32."""


def trunk_and_head(model: Any) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """A causal language model's two parts: up to the hidden states, and from there to logits.

    Raises:
        ValueError: its logits are made in a way that is not known here.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    trunk = getattr(causal, causal.base_model_prefix)
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
    *,
    entropy: bool = False,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Tensor, Tensor | None]:
    """Of each target token, its log-probability after the hidden state in the same place.

    The projection to the vocabulary is done in chunks, and again for the gradient, so that no more
    than `logits_at_once` logits exist at any time.

    Args:
        hidden: (tokens, hidden), of the position before each target.
        head: from hidden states to logits.
        targets: token ids.
        entropy: give the entropy of each distribution too.
        logits_at_once: how large a chunk may get.
    """
    size = getattr(head, "out_features", None) or head(hidden[:1].detach()).shape[-1]
    rows = max(1, logits_at_once // size)
    if len(targets) <= rows:
        return _chunk(hidden, targets, head, entropy)
    logps, entropies = [], []
    for start in range(0, len(targets), rows):
        some = slice(start, start + rows)
        logp, spread = checkpoint(
            _chunk, hidden[some], targets[some], head, entropy, use_reentrant=False
        )
        logps.append(logp)
        entropies.append(spread)
    return torch.cat(logps), torch.cat(entropies) if entropy else None


def _chunk(
    hidden: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor], entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden).float()
    norm = logits.logsumexp(-1)
    logp = logits.gather(-1, targets[:, None])[:, 0] - norm
    if not entropy:
        return logp, None
    return logp, norm - (torch.softmax(logits, -1) * logits).sum(-1)
