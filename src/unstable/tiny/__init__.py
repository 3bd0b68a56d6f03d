"""The embedded model: small enough to be made, and to learn, on one CPU core in minutes.

A Qwen3 of under a million parameters that reads and writes bytes, warmed up on random legal games
so that its moves are legal. In its folder it is a model like any other: `transformers`, PEFT and
vLLM load it.

    from unstable.tiny import make_tiny, tiny_model
    make_tiny("tiny", games=("TicTacToe-v0-train",))
    tiny_model(games=("TicTacToe-v0-train",))  # the same, kept in the user's cache
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstable.tiny.cache import tiny_model
    from unstable.tiny.make import DEFAULT_GAMES, Progress, WarmUp, make_tiny

NAMES = {
    "DEFAULT_GAMES": "unstable.tiny.make",
    "Progress": "unstable.tiny.make",
    "WarmUp": "unstable.tiny.make",
    "make_tiny": "unstable.tiny.make",
    "tiny_model": "unstable.tiny.cache",
}
"""What there is, and the modules that have it."""

__all__ = ["DEFAULT_GAMES", "Progress", "WarmUp", "make_tiny", "tiny_model"]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(NAMES[name]), name)
