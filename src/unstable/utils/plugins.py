"""The user's own parts, named in a configuration as `my_module:MyClass`, and their options."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

_NAME = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


def is_own_part(name: str) -> bool:
    """Return whether this names an installed module's part; models also have colons in names."""
    match = _NAME.fullmatch(name)
    return match is not None and _is_module(match["module"])


def could_be_own_part(name: str, folders: Iterable[str]) -> bool:
    """Return whether this names a part of a module, installed or in one of these folders.

    Nothing is imported, unlike by `is_own_part`.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    top = match["module"].partition(".")[0]
    places = (Path(folder) / end for folder in folders for end in (top, f"{top}.py"))
    return _is_module(top) or any(place.exists() for place in places)


def load_part(name: str) -> Any:
    """Import what `my_module:name` names.

    Raises:
        ValueError: there is no such module, or nothing of that name in it.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not of the form my_module:name")
    if not _is_module(match["module"]):
        raise ValueError(
            f"{name}: no module {match['module']!r}; put it beside the configuration, or its folder"
            " into import_path"
        )
    module = importlib.import_module(match["module"])
    try:
        return getattr(module, match["name"])
    except AttributeError:
        raise ValueError(f"{name}: {match['module']} has no {match['name']!r}") from None


def load_plugins(modules: Iterable[str]) -> None:
    """Import modules that register parts; raise ValueError if one is missing."""
    for module in modules:
        if not _is_module(module):
            raise ValueError(f"plugins: no module {module!r}")
        importlib.import_module(module)


def add_to_path(folders: Iterable[str]) -> None:
    """Search these folders for modules, after all that is installed."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def make_part(kind: Callable[..., Any], options: Mapping[str, Any], where: str) -> Any:
    """Make a part, after checking the names and types of its options.

    Raises:
        ValueError: with `where`, and each option that is wrong.
    """
    return kind(**check_options(kind, options, where))


def check_options(
    kind: Callable[..., Any], options: Mapping[str, Any], where: str
) -> dict[str, Any]:
    types, takes_any = _parameters(kind)
    unknown = [] if takes_any else sorted(options.keys() - types.keys())
    if unknown:
        known = ", ".join(types) or "none"
        raise ValueError(f"{where}: no {', '.join(unknown)}; there are {known}")
    checked = {}
    for name, value in options.items():
        try:
            checked[name] = _validate(value, types.get(name, Any))
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise ValueError(f"{where}: {name} is {value!r}: {problem}") from None
    return checked


def _validate(value: Any, annotation: Any) -> Any:
    adapter = TypeAdapter[Any](annotation, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError:
        # A file has lists for tuples, and text for every key; a number in quotes is a mistake.
        if isinstance(value, list | dict):
            return adapter.validate_python(value)
        raise


def _parameters(kind: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Return the types of what it takes by name, and whether it takes any other name too."""
    try:
        hints = get_type_hints(kind.__init__ if inspect.isclass(kind) else kind)
    except (NameError, TypeError):  # of names that are for type checkers alone
        hints = {}
    types: dict[str, Any] = {}
    takes_any = False
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = hints.get(name)
            if get_origin(options) is Unpack:
                types |= get_type_hints(get_args(options)[0])
            else:
                takes_any = True
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            types[name] = hints.get(name, Any)
    return types, takes_any


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
