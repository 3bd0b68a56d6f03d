"""The subcommands of `unstable`, and what they share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup, TyperOption

from unstable.console import SafeConsole, err, out

__all__ = [
    "CommandError",
    "CommandGroup",
    "JsonFlag",
    "SafeConsole",
    "TrustFlag",
    "UsageError",
    "complain",
    "err",
    "out",
    "print_json",
    "shorten_help",
]


class CommandGroup(TyperGroup):
    """A group of commands whose help shows no types of flags, and defaults as words."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click's Group."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            shorten_help(command.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> Any:
        """See click's Command."""
        parameters = super().get_params(ctx)
        shorten_help(parameters)
        return parameters


def shorten_help(parameters: Iterable[object]) -> None:
    """Leave out types of flags, and show defaults as words."""
    for parameter in parameters:
        if not isinstance(parameter, TyperOption):
            continue
        if parameter.is_flag or parameter.count:
            parameter.metavar = ""
        if isinstance(parameter.show_default, str):  # typer would put it in brackets
            default = escape(f"[default: {parameter.show_default}]")
            parameter.help = f"{parameter.help or ''} [dim]{default}[/]".lstrip()
            parameter.show_default = False


JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output.")
]


TrustFlag = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import the modules that the run names; they run with your permissions."
    ),
]


class CommandError(Exception):
    """The failure of a command; the message says what happened and what to do.

    `detail` explains it further, such as a traceback.
    """

    status = 1

    def __init__(self, message: object, detail: str = "", status: int | None = None) -> None:
        super().__init__(str(message))
        self.detail = detail
        self.status = self.status if status is None else status


class UsageError(CommandError):
    """A mistake in the arguments or files; the message names it and says what to do."""

    status = 2


def complain(error: CommandError) -> None:
    """Print an error on standard error."""
    if error.detail:
        err.print(error.detail.rstrip(), style="dim", markup=False, soft_wrap=True)
    err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str, allow_nan=False) + "\n")
