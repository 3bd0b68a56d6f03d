"""Log-probabilities of the tokens that count, without the logits of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**25
"""Logits that exist at the same time: 134 MB in float32."""


def trunk_of(model: Any) -> Any:
    """A causal language model up to its hidden states."""
    causal = _causal(model)
    return getattr(causal, causal.base_model_prefix)


def _causal(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def trunk_and_head(model: Any) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """A causal language model's two parts: up to the hidden states, and from there to logits.

    Raises:
        ValueError: its logits are made in a way that is not known here.
    """
    causal, trunk = _causal(model), trunk_of(model)
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

    The projection to the vocabulary is done in chunks, so that no more than `logits_at_once` logits
    exist at any time. Where the head is trained or the entropy is wanted, it is done again for the
    gradient.

    Args:
        hidden: (tokens, hidden), of the position before each target.
        head: from hidden states to logits.
        targets: token ids.
        entropy: give the entropy of each distribution too.
        logits_at_once: how large a chunk may get.
    """
    size = getattr(head, "out_features", None) or head(hidden[:1].detach()).shape[-1]
    rows = max(1, logits_at_once // size)
    if not entropy and _is_frozen_linear(head):
        logp: Tensor = _FrozenHead.apply(hidden, head, targets, rows)  # type: ignore[no-untyped-call]
        return logp, None
    if len(targets) <= rows:
        return _chunk(hidden, targets, head, entropy)
    logps, entropies = [], []
    for start in range(0, len(targets), rows):
        some = slice(start, start + rows)
        part, spread = checkpoint(
            _chunk, hidden[some], targets[some], head, entropy, use_reentrant=False
        )
        logps.append(part)
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


def _is_frozen_linear(head: Callable[[Tensor], Tensor]) -> bool:
    return type(head) is torch.nn.Linear and not any(p.requires_grad for p in head.parameters())


class _FrozenHead(torch.autograd.Function):
    """Values and gradients of a chunk from one projection.

    The gradient of a token's log-probability is the row of its own weights less the mean of all
    rows by probability. It does not depend on the loss, so it is there before the loss is known,
    and it is as small as the hidden state.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: torch.nn.Linear, targets: Tensor, rows: int) -> Any:
        weight = head.weight
        logps, slopes = [], []
        for start in range(0, len(targets), rows):
            some = slice(start, start + rows)
            logits = head(hidden[some]).float()
            chosen = logits.gather(-1, targets[some, None])
            most = logits.amax(-1, keepdim=True)
            mass = logits.sub_(most).exp_()  # in place: it is the largest tensor of all
            total = mass.sum(-1, keepdim=True)
            logps.append((chosen - most - total.log())[:, 0])
            if ctx.needs_input_grad[0]:
                mean = (mass.to(weight.dtype) @ weight).float() / total
                slopes.append(weight[targets[some]].float() - mean)
        if slopes:
            ctx.save_for_backward(torch.cat(slopes))
        ctx.dtype = hidden.dtype
        return torch.cat(logps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (slopes,) = ctx.saved_tensors
        return (gradients[0][:, None] * slopes).to(ctx.dtype), None, None, None
