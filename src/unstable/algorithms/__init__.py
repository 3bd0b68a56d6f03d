"""How a batch of steps becomes gradients: one small module each, loaded when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstable.algorithms.a2c import A2C
    from unstable.algorithms.grpo import GRPO, DrGRPO
    from unstable.algorithms.ppo import PPO
    from unstable.algorithms.reinforce import RLOO, Reinforce

ALGORITHMS = {
    "A2C": "unstable.algorithms.a2c",
    "DrGRPO": "unstable.algorithms.grpo",
    "GRPO": "unstable.algorithms.grpo",
    "PPO": "unstable.algorithms.ppo",
    "RLOO": "unstable.algorithms.reinforce",
    "Reinforce": "unstable.algorithms.reinforce",
}
"""Algorithms, and the modules that have their classes."""

__all__ = ["A2C", "ALGORITHMS", "GRPO", "PPO", "RLOO", "DrGRPO", "Reinforce", "make_algorithm"]


def make_algorithm(name: str, **options: Any) -> Any:
    """An algorithm by its name, upper or lower case; raises ValueError with the known names."""
    known = {key.lower(): key for key in ALGORITHMS}
    if name.lower() not in known:
        raise ValueError(f"no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    return __getattr__(known[name.lower()])(**options)


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: the algorithms need torch."""
    if name not in ALGORITHMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(ALGORITHMS[name]), name)
    globals()[name] = value
    return value
