"""LoRA adapters on disk, as PEFT saves them; those of other machines are fetched."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.engines.protocol import EngineError
from unstable.model_pool import ModelPool
from unstable.utils.handles import call_within

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


TIMEOUT = 120.0
KEPT = 32
"""Fetched adapters on disk; engines have those they use in memory."""


class AdapterCache:
    """Finds adapters here, or fetches them from the model pool into a folder of its own.

    Args:
        pool: has the files of adapters that were saved on other machines; None: look here only.
    """

    def __init__(self, pool: ModelPool | None = None) -> None:
        self._pool = pool
        self._folder: Path | None = None
        self._fetched: dict[str, asyncio.Future[str]] = {}

    async def local(self, path: str) -> str:
        """The folder of an adapter on this machine.

        Raises:
            EngineError: it is neither here nor to be had.
        """
        if Path(path).exists() or self._pool is None:
            return path  # the engine says what is wrong with it
        waiting = self._fetched.get(path)
        if waiting is None or waiting.cancelled() or (waiting.done() and waiting.exception()):
            waiting = self._fetched[path] = asyncio.ensure_future(self._fetch(self._pool, path))
            self._forget_old()
        # One caller that gives up must not stop what others wait for.
        return await asyncio.shield(waiting)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        self._fetched.clear()

    async def _fetch(self, pool: ModelPool, path: str) -> str:
        try:
            files = await call_within(TIMEOUT, pool.adapter_files, path)
        except TimeoutError as error:
            raise EngineError(f"the model pool did not send {path} in {TIMEOUT:g} s") from error
        if not files:
            raise EngineError(f"{path} is not on this machine, and the model pool does not have it")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="unstable-adapters-"))
        folder = self._place(path)
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content)
        return str(folder)

    def _place(self, path: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(path.encode()).hexdigest()[:16]

    def _forget_old(self) -> None:
        while len(self._fetched) > KEPT:
            oldest = next(iter(self._fetched))
            del self._fetched[oldest]
            if self._folder is not None:
                shutil.rmtree(self._place(oldest), ignore_errors=True)
