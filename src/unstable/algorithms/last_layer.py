"""The last layer's MLP only where somebody asks: of a row, mostly the answers' tokens.

Attention mixes places, an MLP does not, and after the last one nothing mixes them any more. So the
hidden states of the places that are asked for need no other place's last MLP.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def skip_unasked(trunk: Any) -> bool:
    """Let the last layer of a model look at `Layout.asked`; whether it has the parts for it.

    Hooks, not a new `forward`: they are run again where a layer is computed again for its gradient,
    and a copy of the model has its own.
    """
    layers = getattr(trunk, "layers", None)
    if not layers or not isinstance(getattr(layers[-1], "mlp", None), torch.nn.Module):
        return False
    last = layers[-1]
    last.mlp.asked = None
    last.register_forward_pre_hook(_note_asked, with_kwargs=True)
    last.mlp.register_forward_pre_hook(_take)
    last.mlp.register_forward_hook(_put_back)
    return True


def _note_asked(layer: Any, args: Any, kwargs: dict[str, Any]) -> None:
    del args
    layout = kwargs.get("packed_layout")
    layer.mlp.asked = None if layout is None else layout.asked


def _take(mlp: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if mlp.asked is None:
        return None
    mlp.tokens = args[0].shape[1]
    return (args[0][:, mlp.asked], *args[1:])


def _put_back(mlp: Any, args: Any, out: Tensor) -> Tensor | None:
    del args
    if mlp.asked is None:
        return None
    full = out.new_zeros((out.shape[0], mlp.tokens, out.shape[2]))
    return full.index_copy(1, mlp.asked, out)
