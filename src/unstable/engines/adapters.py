"""LoRA adapters: as PEFT saves them on disk, and several of them in one batch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unstable.engines import EngineError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def fingerprint_adapter(folder: str) -> str:
    """Return a text that changes when the adapter is written anew; EngineError if there is none."""
    try:
        stats = [(Path(folder) / name).stat() for name in (CONFIG, WEIGHTS)]
    except OSError as error:
        raise EngineError(f"no LoRA adapter at {folder}: {error}") from error
    return ".".join(f"{stat.st_ctime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}" for stat in stats)


def check_adapter(folder: str, model: nn.Module) -> None:
    """Raise EngineError for an adapter of another model, or with weights that are not finite.

    Args:
        folder: where the adapter is.
        model: the model that it has to fit; its weights are not looked at, and may be on `meta`.
    """
    from safetensors import SafetensorError, safe_open

    modules = dict(model.named_modules())
    try:
        with safe_open(Path(folder) / WEIGHTS, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118 - it is no mapping
                name, _, half = key.removeprefix("base_model.model.").partition(".lora_")
                if name not in modules:
                    raise EngineError(f"{folder}: the model has no layer for {key}")
                tensor, layer = weights.get_tensor(key), modules[name]
                if isinstance(layer, nn.Linear) and half in ("A.weight", "B.weight"):
                    inwards = half == "A.weight"
                    expected = layer.in_features if inwards else layer.out_features
                    if tensor.shape[inwards] != expected:
                        raise EngineError(f"{folder}: {key} is of another size in the model")
                if not tensor.isfinite().all():
                    raise EngineError(f"{folder}: {key} has weights that are not finite numbers")
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read the adapter at {folder}: {error}") from error


REFUSED = ("use_dora", "fan_in_fan_out", "modules_to_save", "alpha_pattern", "lora_bias")
"""What PEFT can put into an adapter and what is not done here."""

MOST_STAYING = 8


@dataclass(frozen=True, eq=False)
class Adapter:
    """A LoRA adapter in memory; its scale is already in the up projections."""

    name: str
    rank: int
    down: dict[str, Tensor]
    """By the linear layer's name: (rank, inputs)."""
    up: dict[str, Tensor]
    """(outputs, rank)"""


def load_adapter(
    folder: str, model: nn.Module, dtype: torch.dtype, device: torch.device
) -> Adapter:
    """Read an adapter as PEFT saves it. Raises EngineError if it does not fit the model."""
    config, tensors = _read_files(folder)
    linears = {
        name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | LoraLinear)
    }
    down: dict[str, Tensor] = {}
    up: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if ".base_layer." in key:  # PEFT repeats the base's own weights of input and output layers
            continue
        name, _, part = key.removeprefix("base_model.model.").partition(".lora_")
        sides = {"A.weight": down, "B.weight": up}
        if part not in sides or name not in linears:
            raise EngineError(f"{folder}: the model has no linear layer for {key}")
        sides[part][name] = tensor.to(device=device, dtype=torch.float32)
    if set(down) != set(up):
        raise EngineError(f"{folder}: some layers have only one of lora_A and lora_B")
    for name, matrix in down.items():
        rank, linear = len(matrix), linears[name]
        expected = (linear.in_features, linear.out_features, rank)
        if (matrix.shape[1], *up[name].shape) != expected:
            raise EngineError(f"{folder}: {name} is of another size in the model")
        scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
        up[name] = (up[name] * scale).to(dtype)
        down[name] = matrix.to(dtype)
    # Side by side with others, an adapter that is not finite would break them too.
    if not all(bool(tensor.isfinite().all()) for tensor in (*down.values(), *up.values())):
        raise EngineError(f"{folder}: the adapter's weights are not finite")
    return Adapter(folder, max(map(len, down.values()), default=0), down, up)


def _read_files(folder: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read an adapter's configuration and tensors; raise EngineError unless it is plain LoRA."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config: dict[str, Any] = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(Path(folder) / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise EngineError(f"cannot read the adapter at {folder}: {error}") from error
    refused = [name for name in REFUSED if config.get(name)]
    if config.get("bias", "none") != "none":
        refused.append("bias")
    if config.get("peft_type") != "LORA":
        refused.append(f"peft_type {config.get('peft_type')}")
    if refused:
        raise EngineError(f"{folder}: plain LoRA is served here, not {', '.join(refused)}")
    return config, tensors


class AdapterMixture:
    """The adapters of a batch, and which token has which; shared by all linear layers."""

    def __init__(self) -> None:
        self.adapters: tuple[Adapter, ...] = ()
        self.tokens: Tensor | None = None
        """(tokens, all ranks): where a rank is not of the token's adapter; None: nowhere."""
        self.outputs: Tensor | None = None
        """The same for the tokens whose logits are wanted."""


class LoraLinear(nn.Module):
    """A linear layer and what the adapters of the batch add to it.

    The adapters' matrices stand side by side, so that two products serve all of them; each token
    keeps the ranks of its own adapter only.
    """

    def __init__(
        self, linear: nn.Linear, name: str, mixture: AdapterMixture, is_output: bool
    ) -> None:
        super().__init__()
        self.linear = linear
        self.name = name
        self.is_output = is_output
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._mixture = mixture
        self._adapters: tuple[Adapter, ...] = ()
        self._down: Tensor | None = None
        self._up: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """Some models look at their layers' weights."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        return self.linear.bias

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.linear(x)
        mixture = self._mixture
        if self._adapters is not mixture.adapters:
            self._adapters = mixture.adapters
            self._down, self._up = _stack_adapters(mixture.adapters, self.name)
        if self._down is None or self._up is None:
            return base
        ranks = x @ self._down
        others = mixture.outputs if self.is_output else mixture.tokens
        if others is not None:
            ranks.masked_fill_(others, 0.0)
        # In place: it is not shared, and no gradients are taken here.
        flat = base.view(-1, base.shape[-1])
        return flat.addmm_(ranks.view(-1, ranks.shape[-1]), self._up).view(base.shape)


def _stack_adapters(adapters: Sequence[Adapter], name: str) -> tuple[Tensor | None, Tensor | None]:
    """Return (inputs, all ranks) and (all ranks, outputs); missing layers are zeros."""
    having = [adapter for adapter in adapters if name in adapter.down]
    if not having:
        return None, None
    some_down, some_up = having[0].down[name], having[0].up[name]
    down = some_down.new_zeros(sum(a.rank for a in adapters), some_down.shape[1])
    up = some_up.new_zeros(some_up.shape[0], len(down))
    start = 0
    for adapter in adapters:
        if name in adapter.down:
            rank = len(adapter.down[name])
            down[start : start + rank] = adapter.down[name]
            up[:, start : start + rank] = adapter.up[name]
        start += adapter.rank
    return down.T.contiguous(), up.T.contiguous()


def assign_adapters(
    mixture: AdapterMixture,
    owners: Sequence[Adapter | None],
    counts: Sequence[int],
    device: torch.device,
    *,
    stay: bool = False,
) -> None:
    """Set the adapters of the next step, and the number of tokens of each row.

    Args:
        mixture: what the layers look at.
        owners: the adapter of each row.
        counts: how many tokens of each row come, in the same order; the last has its logits taken.
        device: of the model.
        stay: keep those of earlier steps too, up to `MOST_STAYING`, so that matrices seldom move.
    """
    # By name: the order of sums, and so their last bit, must not depend on what came before.
    present = {adapter for adapter in owners if adapter is not None}
    if stay and len(present.union(mixture.adapters)) <= MOST_STAYING:
        present.update(mixture.adapters)
    adapters = tuple(sorted(present, key=lambda adapter: adapter.name))
    if adapters != mixture.adapters:
        mixture.adapters = adapters
    mixture.tokens = mixture.outputs = None
    if not adapters or (len(adapters) == 1 and None not in owners):
        return
    numbers = {adapter: number for number, adapter in enumerate(adapters)}
    whose = torch.tensor([-1 if a is None else numbers[a] for a in owners])
    of_rank = torch.repeat_interleave(torch.tensor([a.rank for a in adapters]))
    others = (whose[:, None] != of_rank).to(device)
    mixture.outputs = mixture.tokens = others
    if max(counts) > 1:
        mixture.tokens = others.repeat_interleave(torch.tensor(counts, device=device), 0)
