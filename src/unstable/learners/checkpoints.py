"""Checkpoints: what players load."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

if TYPE_CHECKING:
    from collections.abc import Iterator


def save_checkpoint(model: Any, folder: Path, tokenizer: Any = None) -> Path:
    """Write an adapter as PEFT does, or a whole model with its tokenizer; whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    try:
        with saving(folder):
            if hasattr(model, "disable_adapter"):
                # The tokens are the base model's: looking whether they changed could ask a server.
                model.save_pretrained(str(temporary), save_embedding_layers=False)
            else:
                model.save_pretrained(str(temporary))
                tokenizer.save_pretrained(str(temporary))
        for path in temporary.iterdir():
            sync(path)
        if folder.exists():  # from before an interruption
            old = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.old")
            folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old)
        else:
            temporary.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """A full disk is an OSError, as everywhere; safetensors has an error of its own for it."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error


def adapter_bytes(folder: Path) -> dict[str, bytes]:
    """An adapter's files by name, to travel to machines that do not see this disk."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name.startswith("adapter_")
    }


def sync(path: Path) -> None:
    """Have a file or folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
