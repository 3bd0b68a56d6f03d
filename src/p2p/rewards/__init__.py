"""Built-in reward functions, usable as they are or as templates.

Every file here with an ENV_ID is a reward file as a person would write one. They are listed
from their source, without being imported.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["BuiltinReward", "UnknownRewardError", "declared_env", "find_reward", "list_rewards"]


@dataclass(frozen=True, slots=True)
class BuiltinReward:
    """A reward file of this package."""

    name: str
    env_id: str
    description: str
    path: Path

    def read(self) -> str:
        """Its source."""
        return self.path.read_text(encoding="utf-8")


class UnknownRewardError(LookupError):
    """There is no built-in reward of that name."""


@cache
def _rewards() -> tuple[BuiltinReward, ...]:
    rewards = (_described(path) for path in sorted(Path(__file__).parent.glob("*.py")))
    return tuple(reward for reward in rewards if reward is not None)


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


def _described(path: Path) -> BuiltinReward | None:
    source = path.read_text(encoding="utf-8")
    env_id = declared_env(source)
    if env_id is None:
        return None
    return BuiltinReward(path.stem, env_id, ast.get_docstring(ast.parse(source)) or "", path)
