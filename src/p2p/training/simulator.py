"""The seam between training and physics: one backend for each engine.

A backend that simulates in batches on a GPU implements the same protocol; what it hands out as
side information and trajectory fields may then be batched tensors. Adding one is a file and a line
in ENGINES.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from p2p.training.specs.records import EnvSpec


class UnsupportedEnvironmentError(ValueError):
    """The environment exists, but this engine cannot describe it."""


class SimulatorBackend(Protocol):
    """What training and prompts need of a physics engine."""

    engine_name: str
    display_name: str
    has_physics_state: bool
    """Whether a reward can be given the simulator's state (`TrainConfig.side_info`)."""

    def is_registered(self, env_id: str) -> bool:
        """Whether the engine has an environment of this id."""

    def read_spec(self, env_id: str) -> EnvSpec:
        """Read everything off a live environment (use `get_env_spec`, which caches)."""

    def extract_side_info(self, env: Any) -> dict[str, Any]:
        """The simulator's live state, as a reward finds it in `info`."""

    def build_trajectory_fields(self, env: Any) -> dict[str, Any]:
        """Copies of the state arrays that a recorded trajectory keeps for each step."""

    def inject_reward_namespace(self, namespace: MutableMapping[str, Any]) -> None:
        """Put the engine's own modules where reward code finds them."""

    def extract_body_info(self, spec: EnvSpec) -> str:
        """Text: how the state arrays are indexed, and the bodies."""

    def extract_body_geometry(self, spec: EnvSpec) -> str:
        """Text: the tree of bodies with masses, joints and shapes."""

    def extract_joint_semantics(self, spec: EnvSpec) -> str:
        """Text: what a positive value of each joint means."""

    def describe_observation(self, spec: EnvSpec) -> str:
        """Text: the observation, index by index."""

    def describe_actions(self, spec: EnvSpec) -> str:
        """Text: the action, index by index."""

    def get_camera_description(self, spec: EnvSpec) -> str:
        """Text: where the world's axes point in a rendered image."""


ENGINES: Mapping[str, str] = {"mujoco": "p2p.training.specs.mujoco_backend:MujocoBackend"}
"""Engine to the class of its backend, imported when it is asked for."""


@cache
def get_simulator(engine: str) -> SimulatorBackend:
    """The backend of an engine, one per process; ValueError for an unknown one."""
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; known: {', '.join(sorted(ENGINES))}")
    module, _, name = ENGINES[engine].partition(":")
    backend: SimulatorBackend = getattr(import_module(module), name)()
    return backend
