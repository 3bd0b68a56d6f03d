"""Finding and making single Gymnasium environments, with errors that say what to do."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from p2p.training.envs.quiet_loading import quiet_loading
from p2p.training.own_modules import own_folders
from p2p.training.unknown_environment import UnknownEnvironmentError

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


def registered(env_id: str) -> EnvSpec:
    """The registered specification of an environment; of `module:Env-v0`, after importing `module`.

    Raises:
        UnknownEnvironmentError: There is none; the message names close matches.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        raise UnknownEnvironmentError(env_id, gym.registry) from error


def _import(module: str, env_id: str) -> None:
    own_folders()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it needs is not
        raise UnknownEnvironmentError(
            env_id,
            (),
            f"{module!r}, which {env_id!r} is to come from, cannot be imported; training runs in "
            "a sandbox, which sees installed packages, but not the current folder or PYTHONPATH: "
            "name the folder of the module in P2P_ENV_PATH",
        ) from error


def make_single(
    env_id: str,
    max_episode_steps: int | None,
    terminate_when_unhealthy: bool | None,
    render_mode: str | None = None,
) -> gym.Env[Any, Any]:
    """Make one environment; None leaves a setting as registered.

    Raises:
        UnknownEnvironmentError: It is not registered.
        ValueError: It has no such setting, or no time limit and none is given.
    """
    spec = registered(env_id)
    options: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if terminate_when_unhealthy is not None:
        entry = spec.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        if (
            creator is None
            or "terminate_when_unhealthy" not in inspect.signature(creator).parameters
        ):
            raise ValueError(f"{env_id} has no terminate_when_unhealthy: leave it unset")
        options["terminate_when_unhealthy"] = terminate_when_unhealthy
    if spec.max_episode_steps is None and max_episode_steps is None:
        raise ValueError(f"{env_id} has no time limit of its own: set max_episode_steps")
    with quiet_loading():
        return gym.make(
            env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **options
        )
