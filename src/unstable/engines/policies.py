"""What a request is answered with: the model itself, an adapter on it, or another model."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.engines.adapter_files import CONFIG, fingerprint
from unstable.engines.adapters import Adapter, load_adapter
from unstable.engines.protocol import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unstable.engines.decoder import Decoder

Key = tuple[str, str]
WHOLE_MODEL = "config.json"


@dataclass(eq=False)
class Policy:
    """Weights in memory."""

    decoder: Decoder
    adapter: Adapter | None = None
    users: int = 0
    """Requests that are being answered with it."""


class Policies:
    """Loads what requests name; keeps the ones used last, never more than `limit`.

    Args:
        base: decodes with the model itself and with adapters.
        limit: how many, the base not counted.
        load_model: makes a decoder of a folder that has a whole model.
    """

    def __init__(self, base: Decoder, limit: int, load_model: Callable[[str], Decoder]) -> None:
        if limit < 1:
            raise ValueError(f"max_adapters is {limit}: at least 1")
        self.base = Policy(base)
        self.limit = limit
        self._load_model = load_model
        self._loaded: OrderedDict[Key, Policy] = OrderedDict()

    def __len__(self) -> int:
        return len(self._loaded)

    def get(self, folder: str | None) -> Policy | None:
        """The policy of a folder, as the folder is now; None: not before another one is unused.

        Raises:
            EngineError: the folder has no adapter or model that can be served.
        """
        if folder is None:
            return self.base
        key = (folder, _version(folder))
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key]
        if not self._make_room():
            return None
        self._loaded[key] = self._load(folder)
        return self._loaded[key]

    def decoders(self) -> list[Decoder]:
        """All there are, each once."""
        policies = (self.base, *self._loaded.values())
        return list(dict.fromkeys(policy.decoder for policy in policies))

    def _make_room(self) -> bool:
        if len(self._loaded) < self.limit:
            return True
        unused = next((key for key, policy in self._loaded.items() if not policy.users), None)
        if unused is None:
            return False
        del self._loaded[unused]
        return True

    def _load(self, folder: str) -> Policy:
        base = self.base.decoder
        if (Path(folder) / CONFIG).exists():
            adapter = load_adapter(folder, base.model, base.dtype, base.device)
            return Policy(base, adapter)
        try:
            return Policy(self._load_model(folder))
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(f"cannot load the model at {folder}: {error}") from error


def _version(folder: str) -> str:
    """Changes when what a folder holds is written anew. Raises EngineError if it holds nothing."""
    whole = Path(folder) / WHOLE_MODEL
    if (Path(folder) / CONFIG).exists() or not whole.exists():
        return fingerprint(folder)
    stat = whole.stat()
    return f"{stat.st_ctime_ns:x}-{stat.st_ino:x}"
