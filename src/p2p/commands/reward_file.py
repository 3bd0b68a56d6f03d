"""The reward that a user named: a file, or one that comes with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2p.commands.console import UsageError, read_text


@dataclass(frozen=True)
class RewardFile:
    """Source text, where it lies, and the environment it says it is for."""

    path: Path
    code: str
    env_id: str | None


def open_reward(name: str) -> RewardFile:
    """Find and read a reward; raises UsageError with near matches if there is none."""
    from p2p.rewards import UnknownRewardError, declared_env, find_reward

    path = Path(name)
    if not (name.endswith(".py") or path.is_file() or "/" in name):
        try:
            found = find_reward(name)
        except UnknownRewardError as error:
            raise UsageError(f"reward: {error} (or give a Python file)") from error
        return RewardFile(found.path, found.read(), found.env_id)
    code = read_text(path, "reward")
    if not code.strip():
        raise UsageError(f"reward: {path} is empty (`p2p rewards NAME` prints one to start from)")
    return RewardFile(path, code, declared_env(code))


def check_environment(env_id: str) -> None:
    """Raise UsageError, with near matches, for an environment that is not registered."""
    from p2p.training.env_spec import UnknownEnvironmentError, list_env_ids
    from p2p.training.envs.registry import registered

    try:
        registered(env_id, list_env_ids())
    except UnknownEnvironmentError as error:
        raise UsageError(f"--env: {error}") from error
