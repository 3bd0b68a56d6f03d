"""Algorithms, from a batch of steps to gradients; each is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstable.algorithms.ppo import A2C, GRPO, PPO, DrGRPO
    from unstable.algorithms.reinforce import RLOO, Reinforce

ALGORITHMS = {
    "A2C": "unstable.algorithms.ppo",
    "DrGRPO": "unstable.algorithms.ppo",
    "GRPO": "unstable.algorithms.ppo",
    "PPO": "unstable.algorithms.ppo",
    "RLOO": "unstable.algorithms.reinforce",
    "Reinforce": "unstable.algorithms.reinforce",
}
"""Algorithms, and the modules that have their classes."""

__all__ = ["A2C", "ALGORITHMS", "GRPO", "PPO", "RLOO", "DrGRPO", "Reinforce"]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: the algorithms need torch."""
    if name not in ALGORITHMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(ALGORITHMS[name]), name)
    globals()[name] = value
    return value
