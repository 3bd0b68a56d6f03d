"""What an environment observes, moves and means: `get_env_spec("HalfCheetah-v5")`.

Every fact is read off the live environment, for Gymnasium's own and for registered ones alike; an
id such as `my_package:MyEnv-v0` imports `my_package` first.
"""

from __future__ import annotations

import sys
from functools import cache

from p2p.config import TrainConfig, engine_of
from p2p.training.engines.table import is_engine
from p2p.training.envs.registry import UnknownEnvironmentError, registered
from p2p.training.simulator import UnsupportedEnvironmentError, get_simulator
from p2p.training.specs.records import EnvSpec

__all__ = [
    "EnvSpec",
    "UnknownEnvironmentError",
    "UnsupportedEnvironmentError",
    "get_env_spec",
    "get_spec_by_name",
    "list_env_ids",
    "max_steps_for_duration",
    "spec_for",
]

_GYMNASIUM = "gymnasium.envs.mujoco."


def _is_mujoco(entry_point: object) -> bool:
    """Whether an entry point makes a MuJoCo environment; imports nothing to find out."""
    from gymnasium.envs.mujoco import MujocoEnv

    if isinstance(entry_point, str):
        module, _, attribute = entry_point.partition(":")
        entry_point = getattr(sys.modules.get(module), attribute, None)
    return isinstance(entry_point, type) and issubclass(entry_point, MujocoEnv)


@cache
def _gymnasium_ids() -> tuple[str, ...]:
    import gymnasium as gym

    newest: dict[str, int] = {}
    for spec in gym.registry.values():
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith(_GYMNASIUM):
            newest[spec.name] = max(newest.get(spec.name, 0), spec.version or 0)
    return tuple(f"{name}-v{version}" for name, version in sorted(newest.items()))


def list_env_ids() -> tuple[str, ...]:
    """Gymnasium's MuJoCo environments in their newest version, then those registered by users."""
    import gymnasium as gym

    own = tuple(
        env_id
        for env_id, spec in gym.registry.items()
        if not str(spec.entry_point).startswith(_GYMNASIUM) and _is_mujoco(spec.entry_point)
    )
    return (*_gymnasium_ids(), *sorted(own))


@cache
def get_env_spec(env_id: str, engine: str | None = None) -> EnvSpec:
    """The environment's facts, read once per process.

    Raises UnknownEnvironmentError for an id that is not registered, and
    UnsupportedEnvironmentError for one whose simulator or spaces the engine cannot describe. An
    engine that is installed beside this package starts for the first reading, which takes minutes;
    EngineMissing says how to install it.
    """
    engine = engine or engine_of(env_id)
    if not is_engine(engine):
        registered(env_id, list_env_ids())
    return get_simulator(engine).read_spec(env_id)


def spec_for(config: TrainConfig) -> EnvSpec:
    """The facts of a configuration's environment, with the time where its policy observes that."""
    spec = get_env_spec(config.env_id, config.engine)
    return spec.with_time() if config.observe_time else spec


def get_spec_by_name(name: str) -> EnvSpec:
    """Look up by id or by display name: `HalfCheetah-v5`, `HalfCheetah`, `half cheetah`."""
    wanted = name.lower().replace(" ", "").replace("_", "")
    for env_id in list_env_ids():
        if wanted in (env_id.lower(), env_id.rpartition("-v")[0].lower()):
            return get_env_spec(env_id)
    return get_env_spec(name)


def max_steps_for_duration(env_id: str, seconds: float) -> int:
    """How many steps last this long; at least one."""
    return max(1, round(seconds / get_env_spec(env_id).dt))
