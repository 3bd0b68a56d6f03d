"""The state that a killed run continues from: one safetensors file.

The trainer writes states; the process that publishes its results adopts one when everything before
it is published. So what a run continues from and what is on record always agree.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


FILE_NAME = "resume.safetensors"


class ResumeError(ValueError):
    """There is a state, but this run cannot continue from it."""


def save_state(
    folder: Path, step: int, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> str:
    """Write the state at this step; it counts once it is adopted. Returns the file's name."""
    from safetensors.numpy import save

    data = save(
        # Not ascontiguousarray, which makes a vector of a single number.
        {name: np.asarray(array, order="C") for name, array in arrays.items()},
        metadata={"meta": json.dumps(meta)},
    )
    name = f"state_{step}.safetensors"
    with (folder / name).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return name


def adopt_state(folder: Path, name: str) -> None:
    """Make this the state that the folder's run continues from, in one step."""
    (folder / name).replace(folder / FILE_NAME)


def forget_leftovers(folder: Path) -> None:
    """Remove what a killed run left in its folder, except the state it continues from."""
    for path in folder.iterdir():
        if path.name == FILE_NAME:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def load_state(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Arrays and meta as saved; None if there is no state. Raises ResumeError if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        meta = json.loads(header["__metadata__"]["meta"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(meta, dict):
        raise ResumeError(f"{path.name} cannot be read: its metadata is not a mapping")
    return arrays, meta
