"""Built-in reward functions, usable as they are or as templates.

Every file here with an ENV_ID is a reward file as a person would write one, and those that
environments come with are written alike. They are listed from their source, without being imported.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from p2p.rewards.environment_defaults import default_rewards

__all__ = ["BuiltinReward", "UnknownRewardError", "declared_env", "find_reward", "list_rewards"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class BuiltinReward:
    """A reward of this package."""

    name: str
    env_id: str
    description: str
    source: str

    def read(self) -> str:
        """Its source."""
        return self.source


class UnknownRewardError(LookupError):
    """There is no built-in reward of that name."""


@cache
def _rewards() -> tuple[BuiltinReward, ...]:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in _FOLDER.glob("*_*.py")}
    sources |= dict(default_rewards())
    described = (_describe(name, sources[name]) for name in sorted(sources))
    return tuple(reward for reward in described if reward is not None)


def list_rewards(env_id: str | None = None) -> list[BuiltinReward]:
    """The built-in rewards, all or those of one environment, by name."""
    return [reward for reward in _rewards() if env_id in {None, reward.env_id}]


def find_reward(name: str) -> BuiltinReward:
    """The built-in reward of this name; UnknownRewardError with near matches if there is none."""
    by_name = {reward.name: reward for reward in _rewards()}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see `p2p rewards`"
        raise UnknownRewardError(f"no built-in reward is called {name!r}{hint}")
    return by_name[name]


def declared_env(source: str) -> str | None:
    """The ENV_ID that a reward file says it is for; None where it says nothing readable."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "ENV_ID"
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            return node.value.value
    return None


def _describe(name: str, source: str) -> BuiltinReward | None:
    env_id = declared_env(source)
    if env_id is None:
        return None
    return BuiltinReward(name, env_id, ast.get_docstring(ast.parse(source)) or "", source)
