"""Drawing tokens, row by row alike: what a row gets does not depend on the others."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(
    logits: Tensor, uniforms: list[float], temperatures: list[float], top_ps: list[float]
) -> tuple[Tensor, Tensor]:
    """Draw a token per row by inverting its cumulative distribution at its uniform number.

    Args:
        logits: (rows, vocabulary), float32.
        uniforms: per row, in [0, 1).
        temperatures: per row; 0: the most likely token.
        top_ps: per row; below 1 the least likely tokens beyond that mass are left out.

    Returns:
        The tokens, and their log-probabilities under the model itself. A row whose logits are not
        numbers gets a log-probability that is none either.
    """
    logprobs = logits.log_softmax(-1)
    tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    greedy = [row for row, t in enumerate(temperatures) if t <= 0.0]
    nucleus = [
        row
        for row, (t, p) in enumerate(zip(temperatures, top_ps, strict=True))
        if t > 0.0 and p < 1.0
    ]
    whole = [
        row
        for row, (t, p) in enumerate(zip(temperatures, top_ps, strict=True))
        if t > 0.0 and p >= 1.0
    ]
    for rows, pick in ((greedy, _most_likely), (nucleus, _from_nucleus), (whole, _from_whole)):
        if not rows:
            continue
        everybody = len(rows) == len(logits)
        chosen = logits if everybody else logits[rows]
        numbers = torch.tensor(
            [[uniforms[row], temperatures[row], top_ps[row]] for row in rows],
            dtype=torch.float64,
        ).to(device=logits.device, dtype=torch.float32)
        picked = pick(chosen, numbers[:, :1], numbers[:, 1:2], numbers[:, 2:])
        if everybody:
            tokens = picked
        else:
            tokens[rows] = picked
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _most_likely(logits: Tensor, uniform: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:  # noqa: ARG001
    return logits.argmax(-1)


def _from_whole(logits: Tensor, uniform: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:  # noqa: ARG001
    mass = (logits / temperature).softmax(-1).cumsum(-1)
    return _invert(mass, uniform * mass[:, -1:])


def _from_nucleus(logits: Tensor, uniform: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    probs, order = (logits / temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    mass = probs.cumsum(-1)
    # The token that reaches top_p is the last one kept, and the first is always kept.
    last = (mass < top_p * mass[:, -1:]).sum(-1, keepdim=True).clamp_(max=mass.shape[-1] - 1)
    place = _invert(mass, uniform * mass.gather(1, last))
    return order.gather(1, place[:, None])[:, 0]


def _invert(mass: Tensor, at: Tensor) -> Tensor:
    """The first place whose cumulative mass is more than `at`."""
    return torch.searchsorted(mass, at, right=True)[:, 0].clamp_(max=mass.shape[-1] - 1)
