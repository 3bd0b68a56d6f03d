"""The embedded model, made once and kept."""

from __future__ import annotations

import hashlib
import os
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.tiny.make import DEFAULT_GAMES, WarmUp, make_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unstable.tiny.make import Progress

VERSION = 3
"""To be raised when the same arguments make another model."""


def tiny_model(
    games: Sequence[str] = DEFAULT_GAMES,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    warm_up: WarmUp | None = None,
) -> str:
    """The folder of the embedded model for these games; it is made if it is not there yet.

    It lies in `unstable/` below `XDG_CACHE_HOME`, or `~/.cache`.
    """
    plan = warm_up or WarmUp()
    made_of = repr((VERSION, tuple(games), seed, astuple(plan)))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "unstable" / f"tiny-{digest}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            make_tiny(folder, games, seed, progress, plan)
        except OSError:
            if not folder.exists():  # else somebody else was faster, with the same model
                raise
    return str(folder)
