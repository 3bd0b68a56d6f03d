"""Reading the files of a record: `load_*` says why one is unreadable, `read_*` gives None."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from p2p.atomic import write_text
from p2p.jsonl import parse_line, read_from

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Model = TypeVar("Model", bound=BaseModel)


class UnreadableError(ValueError):
    """The file is there, but it is not what it should be."""


def load_text(path: Path) -> str | None:
    """The file's text; None if there is no file; UnreadableError if it has no text in it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise UnreadableError("not UTF-8 text") from None
    except OSError as error:
        raise UnreadableError(error.strerror or type(error).__name__) from error


def load_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file."""
    text = load_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except ValueError as error:
        raise UnreadableError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"not a JSON object but a {type(value).__name__}")
    return value


def load_model(path: Path, model: type[Model]) -> Model | None:
    """The record in the file, checked."""
    value = load_object(path)
    if value is None:
        return None
    try:
        # Through JSON and not as Python values, because there a list is no tuple.
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        problems = ("{}: {}".format(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors())
        raise UnreadableError("; ".join(problems)) from None


def read_text(path: Path) -> str | None:
    """The file's text, or None."""
    try:
        return load_text(path)
    except UnreadableError:
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file, or None."""
    try:
        return load_object(path)
    except UnreadableError:
        return None


def read_model(path: Path, model: type[Model]) -> Model | None:
    """The record in the file, or None."""
    try:
        return load_model(path, model)
    except UnreadableError:
        return None


def save_model(path: Path, value: BaseModel) -> None:
    """Replace the file by this record."""
    write_text(path, value.model_dump_json(indent=2) + "\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; torn and foreign lines are left out."""
    offset = 0
    while True:
        lines, following = read_from(path, offset)
        if following == offset:
            return
        offset = following
        yield from (record for line in lines if (record := parse_line(line)) is not None)


def step_of(line: dict[str, Any]) -> int | None:
    """The training step that a line of scalars.jsonl belongs to."""
    step = line.get("global_step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None
