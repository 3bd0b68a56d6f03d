"""Checked records: what they have in common, their flags, and what to say of a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to a message about an unknown name; empty where nothing is close."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def field_error(field: str, message: str) -> ValidationError:
    """The error that a record raises about a field, for checks outside of records."""
    # As a value, a message may hold braces.
    reason = PydanticCustomError("value_error", "{message}", {"message": message})
    return ValidationError.from_exception_data(
        "", [{"type": reason, "loc": (field,), "input": None}]
    )


def describe_errors(
    error: ValueError,
    names: Mapping[str, str] | None = None,
    *,
    known: Iterable[str] = (),
    formats: Mapping[str, str] | None = None,
) -> str:
    """Describe a validation error in one line: `field: message; field: message`.

    `names` are what the reader calls the fields, such as flags. `known` are the fields that there
    are, one of which is suggested in place of an unknown one. `formats` say what a text may be, in
    place of a regular expression.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    names, formats, problems = names or {}, formats or {}, []
    for item in error.errors(include_url=False, include_input=False):
        field, first = ".".join(map(str, item["loc"])), "".join(map(str, item["loc"][:1]))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = f"no such field{did_you_mean(field, known)}"
        elif item["type"].startswith("string_") and first in formats:
            message = f"allowed are {formats[first]}"
        field = names.get(field) or names.get(first, field)
        problems.append(f"{field}: {message}" if field else message)
    return "; ".join(dict.fromkeys(problems))


class Record(BaseModel):
    """A checked, immutable record; unknown keys are errors.

    NaN and infinity, where a record has them, stand in JSON as text: plain JSON that any reader
    takes, and a record that reads back as it was.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=True,
        ser_json_inf_nan="strings",
        defer_build=True,
    )

    # Records read like the dictionaries that their JSON is.

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields

    def keys(self) -> KeysView[str]:
        return type(self).model_fields.keys()

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


@dataclass(frozen=True)
class Flag:
    """How a field is given on a command line; it stands in the field's `Annotated`."""

    name: str
    """`--steps`; of a switch `--videos/--no-videos`."""
    help: str
    metavar: str = ""
    default: str = ""
    """As help shows it; empty: the field's own."""
    panel: str | None = None
    """Where help shows it."""
    short: str = ""
    older: tuple[str, ...] = ()
    """Names of earlier versions: accepted, and not shown."""
    one_text: bool = False
    """Several values are one text with commas; otherwise each has the flag before it."""


def flags_of(model: type[BaseModel]) -> dict[str, Flag]:
    """The flags of a record by field, its own before those that it inherits."""
    fields = {
        name: next((each for each in field.metadata if isinstance(each, Flag)), None)
        for name, field in model.model_fields.items()
    }
    order = [name for part in model.mro() for name in vars(part).get("__annotations__", {})]
    ranked = sorted(fields, key=order.index)
    return {name: flag for name in ranked if (flag := fields[name]) is not None}
