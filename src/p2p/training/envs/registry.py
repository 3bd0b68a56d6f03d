"""Finding and making single Gymnasium environments, with errors that say what to do."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from p2p.settings import get_settings
from p2p.training.model_files.store import is_model, register

if TYPE_CHECKING:
    from pathlib import Path

    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec

    from p2p.config import EnvOptions


TRIALS = (
    "p2p.agents.returns_worker",
    "p2p.training.reward_check",
    "p2p.agents.judge_worker",
    "p2p.training.scripted",
    "p2p.training.vec_env",
    "gymnasium.envs.mujoco",
)
"""What trials of rewards and judges import: they find it imported (`Sandbox.warm`)."""


class UnknownEnvironmentError(ValueError):
    """No environment is registered under this id; the message names near matches, or the reason."""

    def __init__(self, env_id: str, known: Iterable[str], reason: str = "") -> None:
        by_lower_case = {name.lower(): name for name in known}
        close = difflib.get_close_matches(env_id.lower(), by_lower_case, n=3, cutoff=0.5)
        self.env_id = env_id
        self.near = [by_lower_case[name] for name in close]
        hint = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        why = reason or f"no environment {env_id!r} is registered{hint}"
        super().__init__(f"{why} (`p2p envs` lists them)")


def own_folders() -> tuple[Path, ...]:
    """The folders of P2P_ENV_PATH; from now on, this process imports from them, too.

    The sandbox may read all of such a folder, so it should hold environments and nothing private.
    """
    folders = get_settings().env_folders()
    sys.path += [str(folder) for folder in folders if str(folder) not in sys.path]
    return folders


def find_spec(env_id: str, known: Iterable[str] | None = None) -> EnvSpec:
    """Return the registered specification; for `module:Env-v0`, import `module` first.

    Raises:
        UnknownEnvironmentError: There is none; the message names close matches among `known`.
    """
    import gymnasium as gym

    if is_model(env_id):
        register(env_id)
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        raise UnknownEnvironmentError(env_id, known or gym.registry) from error


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


def make_single(options: EnvOptions, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Make one environment; it observes the time as Gymnasium's own TimeAwareObservation adds it.

    Raises:
        UnknownEnvironmentError: It is not registered.
        ValueError: It has no such setting, or no time limit and none is given.
    """
    import gymnasium as gym
    from gymnasium.envs.registration import load_env_creator
    from gymnasium.wrappers import TimeAwareObservation

    env_id, terminates = options.env_id, options.terminate_when_unhealthy
    spec = find_spec(env_id)
    settings: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if terminates is not None:
        entry = spec.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        if (
            creator is None
            or "terminate_when_unhealthy" not in inspect.signature(creator).parameters
        ):
            raise ValueError(f"{env_id} has no terminate_when_unhealthy: leave it unset")
        settings["terminate_when_unhealthy"] = terminates
    if spec.max_episode_steps is None and options.max_episode_steps is None:
        raise ValueError(f"{env_id} has no time limit of its own: set max_episode_steps")
    with quiet_loading():
        env: gym.Env[Any, Any] = gym.make(
            env_id,
            max_episode_steps=options.max_episode_steps,
            disable_env_checker=True,
            **settings,
        )
    return TimeAwareObservation(env, normalize_time=True) if options.observe_time else env


_LOG_SETTINGS = threading.RLock()
"""They are the process's: one thread must not bring back another's."""


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Inside, MuJoCo prints nothing and leaves no MUJOCO_LOG.TXT in the current folder.

    HalfCheetah's file uses an attribute that MuJoCo calls deprecated at every load; nobody who
    trains can do anything about that. Errors are exceptions and are not touched. Wrap loading
    only: what MuJoCo has to say while it simulates is worth hearing.
    """
    import mujoco

    with _LOG_SETTINGS:
        usual = mujoco.MjLogConfig.get()
        silent = mujoco.MjLogConfig.get()
        silent.logto_console = silent.logto_file = False
        silent.set()
        try:
            yield
        finally:
            usual.set()
