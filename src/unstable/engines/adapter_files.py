"""LoRA adapters on disk, as PEFT saves them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unstable.engines.protocol import EngineError

if TYPE_CHECKING:
    from torch import nn

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def fingerprint(folder: str) -> str:
    """Changes when the adapter in a folder is written anew. Raises EngineError if there is none."""
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
    from torch import nn

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
