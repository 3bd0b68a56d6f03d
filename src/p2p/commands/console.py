"""What the commands share: where output goes, and how errors are said."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
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

    def __init__(self, message: object, detail: str = "", status: int | None = None) -> None:
        super().__init__(str(message))
        self.detail = detail
        self.status = self.status if status is None else status


class UsageError(CommandError):
    """A mistake in the arguments or files; the message names it and says what to do."""

    status = 2


def no_answer(error: InferenceError) -> CommandError:
    """A model gave no answer: with the exit status of a session that ends so."""
    from p2p.records.statuses import EXIT_CODES
    from p2p.session.endings import status_of

    return CommandError(error, status=EXIT_CODES[status_of(error)])


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


def flag_names(context: typer.Context) -> dict[str, str]:
    """The flags of a command, by the names of its parameters."""
    names = {
        str(parameter.name): max(parameter.opts, key=len) for parameter in context.command.params
    }
    return {name: flag if flag[0] == "-" else flag.upper() for name, flag in names.items()}


def flags_given(context: typer.Context) -> dict[str, str]:
    """Those of them that were typed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name: flag for name, flag in flag_names(context).items() if name in typed}


@contextmanager
def usage_errors(
    names: Mapping[str, str] | None = None,
    where: str = "",
    formats: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Turn what is wrong with arguments into a UsageError; see `describe_errors`."""
    from p2p.config import TrainConfig
    from p2p.contracts import describe_errors
    from p2p.inference.question import InferenceError, RequestRejected

    try:
        yield
    except RequestRejected as error:
        raise UsageError(f"--model, --vlm: {error}") from error
    except InferenceError as error:
        raise no_answer(error) from error
    except ValueError as error:
        known = TrainConfig.model_fields
        message = describe_errors(error, names, known=known, formats=formats)
        raise UsageError(f"{where}: {message}" if where else message) from error
