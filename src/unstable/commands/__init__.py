"""The subcommands of `unstable`, one module each; here what they share."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from typer.core import TyperGroup, TyperOption

from unstable.utils.logging import printable


class SafeConsole(Console):
    """A console whose texts control no terminal: all that is printed is rendered here.

    Much of what we print was written by models or by the code that they wrote. Colours are styles
    of a segment, and the console's own movements are marked as control: both pass.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)


class CommandGroup(TyperGroup):
    """Commands whose help is short: no types of flags, and defaults as words."""

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


out = SafeConsole(highlight=False)
err = SafeConsole(stderr=True, highlight=False)


JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output.")
]


TrustFlag = Annotated[
    bool,
    typer.Option("--trust", help="Import the modules that the run names: they run as you."),
]


class CommandError(Exception):
    """A command ends without its result; the message says what happened and what to do.

    `detail` is what lies behind the message, such as a traceback.
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
    if error.detail:
        err.print(error.detail.rstrip(), style="dim", markup=False, soft_wrap=True)
    err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str, allow_nan=False) + "\n")


SELFPLAY = ("textarena", "transformers", "peft", "trueskill")
"""What the extra `selfplay` brings, and no command that plays can do without."""


def require_selfplay(modules: Sequence[str] = SELFPLAY) -> None:
    """Raise UsageError, with what to do, where only the core is installed."""
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: not installed; pip install 'prompt2policy[selfplay]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
