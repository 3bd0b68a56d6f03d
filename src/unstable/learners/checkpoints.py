"""The learner's files: checkpoints that players load, and its own state.

The state is tensors and JSON, nothing that could run.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from unstable.utils.files import new_folder, sync

if TYPE_CHECKING:
    from torch import Tensor


def save_checkpoint(model: Any, folder: Path, tokenizer: Any = None) -> Path:
    """Write an adapter as PEFT does, or a whole model with its tokenizer; whole or not at all."""
    with translating_save_errors(folder), new_folder(folder) as temporary:
        if hasattr(model, "disable_adapter"):
            # The tokens are the base model's: looking whether they changed could ask a server.
            model.save_pretrained(str(temporary), save_embedding_layers=False)
        else:
            model.save_pretrained(str(temporary))
            tokenizer.save_pretrained(str(temporary))
    return folder


@contextmanager
def translating_save_errors(path: Path) -> Iterator[None]:
    """Raise a full disk as OSError; safetensors has an error of its own for it."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error


def read_adapter_files(folder: Path) -> dict[str, bytes]:
    """Return an adapter's files by name, to travel to machines that do not see this disk."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name.startswith("adapter_")
    }


STATE_FILE = "learner.safetensors"
STATE_KEY = "state"


def gather_tensors(
    named: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    tensors = {}
    for key, parameter in named.items():
        tensors[f"weight/{key}"] = parameter
        for entry, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{entry}/{key}"] = torch.as_tensor(value)
    return tensors


@torch.no_grad()
def restore_tensors(
    tensors: Mapping[str, Tensor],
    named: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    where: str,
) -> None:
    """Load the tensors of `gather_tensors` into the model and the optimiser.

    Raises:
        ValueError: the tensors are not those of this model; nothing was changed.
    """
    shapes = {f"weight/{key}": parameter.shape for key, parameter in named.items()}
    kept = {key: value.shape for key, value in tensors.items() if key.startswith("weight/")}
    differing = sorted(key for key in shapes | kept if shapes.get(key) != kept.get(key))
    if differing:
        raise ValueError(
            f"{where}: the state is of another model: {len(differing)} tensors differ, the first"
            f" is {differing[0].removeprefix('weight/')}; was lora_cfg or model_name changed?"
        )
    optimizer.state.clear()
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "weight":
            named[rest].copy_(tensor)
            continue
        entry, _, key = rest.partition("/")
        parameter = named[key]
        device = "cpu" if entry == "step" else parameter.device  # as AdamW keeps them
        optimizer.state[parameter][entry] = tensor.to(device)


def write_state(folder: Path, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Replace the learner's state in a folder: one file, so that it is consistent."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE_FILE
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with translating_save_errors(path):
            save_file(kept, str(temporary), metadata={STATE_KEY: json.dumps(dict(plain))})
        sync(temporary)
        temporary.replace(path)
        sync(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the other values.

    Raises:
        ValueError: there is no state, or it is not one of a learner.
    """
    from safetensors import safe_open

    path = folder / STATE_FILE
    if not path.is_file():
        raise ValueError(f"{path}: there is no learner's state")
    try:
        with safe_open(str(path), framework="pt") as stream:
            plain = json.loads((stream.metadata() or {})[STATE_KEY])
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a learner's state: {error}") from error
    return tensors, plain
