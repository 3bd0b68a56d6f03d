"""What the commands share: where output goes, and how errors are said."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from pydantic import ValidationError

    from p2p.inference.question import InferenceError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")
]
UnsafeFlag = Annotated[
    bool,
    typer.Option(
        "--unsafe-local",
        help="Where the kernel has no sandbox, run the reward without one: it can then read your "
        "files, use the network and start programs.",
    ),
]


class CommandError(Exception):
    """A command ends without its result; the message says what happened and what to do.

    Attributes:
        detail: what lies behind the message, such as a traceback.
        status: the exit status.
    """

    status = 1

    def __init__(self, message: object, detail: str = "") -> None:
        super().__init__(str(message))
        self.detail = detail


class UsageError(CommandError):
    """A mistake in the arguments or files; the message names it and says what to do."""

    status = 2


def no_answer(error: InferenceError) -> CommandError:
    """A model gave no answer: with the exit status of a session that ends so."""
    from p2p.records.statuses import EXIT_CODES
    from p2p.session.endings import status_of

    failure = CommandError(error)
    failure.status = EXIT_CODES[status_of(error)]
    return failure


def complain(error: CommandError) -> None:
    """One line on standard error, and what lies behind it."""
    if error.detail:
        err.print(error.detail.rstrip(), style="dim", markup=False, soft_wrap=True)
    err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=str, allow_nan=False) + "\n")


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to a message about an unknown name; empty where nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def read_text(path: Path, what: str) -> str:
    """The text of a file that the user named."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"{what}: {path} does not exist") from error
    except IsADirectoryError as error:
        raise UsageError(f"{what}: {path} is a directory, not a file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: {path} is not a text file in UTF-8") from error
    except OSError as error:
        raise UsageError(f"{what}: {path} cannot be read: {error.strerror}") from error


def field_errors(error: ValidationError, where: str) -> str:
    """Every bad field of a configuration, in one line."""
    from p2p.config import TrainConfig

    problems = []
    for item in error.errors():
        name = ".".join(map(str, item["loc"]))
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = "no such field" + did_you_mean(name, TrainConfig.model_fields)
        problems.append(f"{name}: {text}" if name else text)
    return f"{where}: " + "; ".join(problems)
