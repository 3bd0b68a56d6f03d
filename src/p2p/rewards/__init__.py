"""Built-in reward functions, usable as they are or as templates.

Every file here with an ENV_ID is a reward file as a person would write one, and those that
environments come with are written alike. They are listed from their source, without being imported.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from p2p.utils.utils import parse_python

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
        """Return the reward's source."""
        return self.source


class UnknownRewardError(LookupError):
    """There is no built-in reward of that name."""


@cache
def _rewards() -> tuple[BuiltinReward, ...]:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in _FOLDER.glob("*_*.py")}
    sources |= dict(_default_rewards())
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
        tree = parse_python(source)
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
    return BuiltinReward(name, env_id, ast.get_docstring(parse_python(source)) or "", source)


# --- the rewards that environments come with: sums of their own terms -----------------------------

_SOURCE = '''"""The reward that {env_id} comes with, term by term."""

ENV_ID = "{env_id}"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that {env_id} comes with, term by term.

    LaTeX: r = {latex}
    Terms:
{meanings}
    """
    terms = {{
{values}
    }}
    return sum(terms.values()), terms
'''
_MEANINGS: Mapping[str, str] = {
    "forward": "forward speed along x",
    "survive": "bonus while healthy",
    "ctrl": "cost of large actions",
    "contact": "cost of contact forces",
    "linup": "height of the torso over the time step",
    "impact": "cost of contact forces",
    "alive": "constant",
    "near": "distance from hand to object, negative",
    "distance": "tip away from the upright place",
    "velocity": "joint speeds",
}
_TERMS: Mapping[str, tuple[str, str]] = {
    "Ant": (r"v_x + 1 - 0.5 \|a\|^2 - 5 \cdot 10^{-4} \|f\|^2", "forward survive ctrl contact"),
    "HalfCheetah": (r"v_x - 0.1 \|a\|^2", "forward ctrl"),
    "Hopper": (r"v_x + 1 - 10^{-3} \|a\|^2", "forward survive ctrl"),
    "Humanoid": (
        r"1.25 v_x + 5 - 0.1 \|a\|^2 - 5 \cdot 10^{-7} \|f\|^2",
        "forward survive ctrl contact",
    ),
    "HumanoidStandup": (
        r"z / h - 0.1 \|a\|^2 - 5 \cdot 10^{-7} \|f\|^2 + 1",
        "linup ctrl=reward_quadctrl impact alive=1.0",
    ),
    "InvertedDoublePendulum": (
        r"10 - 0.01 x^2 - (y - 2)^2 - 10^{-3} \omega_1^2 - 5 \cdot 10^{-3} \omega_2^2",
        "survive distance=distance_penalty velocity=velocity_penalty",
    ),
    "InvertedPendulum": (r"[\,|\theta| \leq 0.2\,]", "survive"),
    "Pusher": (r"-\|o - g\| - 0.1 \|a\|^2 - 0.5 \|o - p\|", "dist ctrl near"),
    "Reacher": (r"-\|p - g\| - 0.1 \|a\|^2", "dist ctrl"),
    "Swimmer": (r"v_x - 10^{-4} \|a\|^2", "forward ctrl"),
    "Walker2d": (r"v_x + 1 - 10^{-3} \|a\|^2", "forward survive ctrl"),
}
"""The formula, and the terms in the order of their sum; `=` where one is not `reward_TERM`."""
_OWN_MEANINGS: Mapping[tuple[str, str], str] = {
    ("InvertedDoublePendulum", "survive"): "bonus while the tip is up",
    ("InvertedPendulum", "survive"): "one while the pole stands",
    ("Pusher", "dist"): "distance from object to goal, negative",
    ("Reacher", "dist"): "distance from fingertip to target, negative",
}


def _default_rewards() -> Iterator[tuple[str, str]]:
    """The name and the source of each, as a person would write it."""
    for name, (latex, terms) in _TERMS.items():
        meanings, values = [], []
        for entry in terms.split():
            term, _, key = entry.partition("=")
            value = key if key == "1.0" else f'info["{key or f"reward_{term}"}"]'
            meaning = _OWN_MEANINGS.get((name, term)) or _MEANINGS[term]
            meanings.append(f"        {term}: {meaning}")
            values.append(f'        "{term}": {value},')
        yield (
            f"{name.lower()}_default",
            _SOURCE.format(
                env_id=f"{name}-v5",
                latex=latex,
                meanings="\n".join(meanings),
                values="\n".join(values),
            ),
        )
