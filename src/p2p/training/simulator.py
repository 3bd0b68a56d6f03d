"""The seam between training and physics: one backend for each engine.

A backend that simulates in batches on a GPU implements the same protocol; what it hands out as
side information may then be batched tensors. Adding one is a file and a line in ENGINES.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from p2p.training.engines.table import ENGINES as INSTALLED_APART
from p2p.training.engines.table import is_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.training.specs.records import EnvSpec


class UnsupportedEnvironmentError(ValueError):
    """The environment exists, but this engine cannot describe it."""


class SimulatorBackend(Protocol):
    """What training and prompts need of a physics engine."""

    engine_name: str

    def read_spec(self, env_id: str) -> EnvSpec:
        """Read everything off a live environment (use `get_env_spec`, which caches)."""

    def extract_side_info(self, env: Any) -> dict[str, Any]:
        """The simulator's live state, as a reward finds it in `info`."""

    def reward_namespace(self) -> dict[str, Any]:
        """The engine's own modules, which reward code may use without importing them."""


ENGINES: Mapping[str, str] = {
    "mujoco": "p2p.training.specs.mujoco_backend:MujocoBackend",
    "isaaclab": "p2p.training.isaaclab_backend:IsaacLabBackend",
}
"""Engine to the class of its backend, imported when it is asked for. The others that are installed
beside this package (training/engines) share one class."""


@cache
def get_simulator(engine: str = "mujoco") -> SimulatorBackend:
    """The backend of an engine, one per process; ValueError for an unknown one."""
    if is_engine(engine) and engine not in ENGINES:
        from p2p.training.engines.facts import EngineBackend

        return EngineBackend(engine)
    if engine not in ENGINES:
        known = ", ".join(sorted({*ENGINES, *INSTALLED_APART}))
        raise ValueError(f"unknown engine {engine!r}; known: {known}")
    module, _, name = ENGINES[engine].partition(":")
    backend: SimulatorBackend = getattr(import_module(module), name)()
    return backend
