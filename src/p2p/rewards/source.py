"""The source text of a reward, however it is given: it is trained on in a sandbox, as a file."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

from p2p.rewards import declared_env, find_reward
from p2p.utils.utils import parse_python

Reward = str | Path | Callable[..., object]
"""A file, the name of a built-in reward, a function or a class derived from RewardFunction."""
PLAIN = (int, float, str, bool, type(None), tuple, list, dict)


@dataclass(frozen=True)
class RewardText:
    """A reward: what messages call its file, its source text, and the environment it names."""

    name: str
    code: str
    env_id: str | None


def read_reward(reward: Reward) -> RewardText:
    """The source of a reward.

    Raises UnknownRewardError for a name that no built-in reward has, OSError for a file that
    cannot be read, and ValueError for a function whose source cannot be taken.
    """
    if callable(reward):
        return _from_object(reward)
    path = Path(reward)
    if path.suffix != ".py" and "/" not in str(reward) and not path.is_file():
        builtin = find_reward(str(reward))
        return RewardText(f"{reward}.py", builtin.read(), builtin.env_id)
    code = path.read_text(encoding="utf-8")
    if not code.strip():
        raise ValueError(f"{path} is empty (`p2p rewards NAME` prints one to start from)")
    return RewardText(str(path), code, declared_env(code))


def _from_object(reward: Callable[..., object]) -> RewardText:
    """The source of a function or class, with the imports, constants and functions it uses."""
    thing = reward if isinstance(reward, FunctionType | type) else type(reward)
    if thing is not reward and vars(reward):
        raise ValueError(
            f"{thing.__name__}: attributes of an object ({', '.join(vars(reward))}) do not reach "
            "the sandbox: give the class, with its values inside"
        )
    if thing.__name__ == "<lambda>":
        raise ValueError("a lambda has no source of its own: define the reward with `def`")
    parts: dict[str, str] = {}
    _collect(thing, thing.__name__, parts)
    text = "\n\n".join(parts.values())
    if thing.__name__ != "reward_fn":
        text += f"\n\nreward_fn = {thing.__name__}"
    return RewardText(f"{thing.__name__}.py", text + "\n", None)


def _collect(thing: FunctionType | type, name: str, parts: dict[str, str]) -> None:
    """Add the source of a function or class to `parts`, after everything it refers to."""
    source = _source_of(thing)
    known = vars(sys.modules[thing.__module__])
    if isinstance(thing, FunctionType):
        known = {**thing.__globals__, **inspect.getclosurevars(thing).nonlocals}
    used = {node.id for node in ast.walk(parse_python(source)) if isinstance(node, ast.Name)}
    parts[name] = ""  # it may refer to itself
    for each in sorted(used & known.keys() - parts.keys() - vars(builtins).keys()):
        value = known[each]
        module = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            parts[each] = f"import {value.__name__} as {each}"
        elif isinstance(value, FunctionType | type) and module == thing.__module__:
            _collect(value, each, parts)
        elif callable(value) and module:
            parts[each] = f"from {module} import {value.__name__} as {each}"
        elif isinstance(value, PLAIN):
            parts[each] = f"{each} = {value!r}"
        else:
            raise ValueError(
                f"{name} uses {each}, a {type(value).__name__} that does not reach the sandbox: "
                "make it inside, or give a file"
            )
    del parts[name]
    parts[name] = source


def _source_of(thing: FunctionType | type) -> str:
    """The source of a function or class, also of one that was typed into a notebook."""
    with suppress(OSError, TypeError):
        return textwrap.dedent(inspect.getsource(thing))
    # Python looks for a class in its module's file, which a notebook's cells have not.
    for method in filter(inspect.isfunction, vars(thing).values()):
        text = "".join(linecache.getlines(method.__code__.co_filename))
        for node in ast.walk(parse_python(text)):
            if isinstance(node, ast.ClassDef) and node.name == thing.__name__:
                return textwrap.dedent(ast.get_source_segment(text, node) or "")
    raise ValueError(f"the source of {thing.__name__} is not there: give a file")
