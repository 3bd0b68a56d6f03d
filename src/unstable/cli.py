"""The `unstable` command."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Annotated, NoReturn

import typer

from unstable.commands import CommandError, CommandGroup, UsageError, complain, print_json
from unstable.commands.evaluate import evaluate
from unstable.commands.play import games, play
from unstable.commands.train import resume, tiny, train
from unstable.commands.watch import terminal, watch
from unstable.utils.interrupts import interrupt

app = typer.Typer(
    name="unstable",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Training": (train, resume, tiny),
    "Results": (watch, terminal, evaluate),
    "Games": (play, games),
}
NAMES: dict[Callable[..., None], str] = {evaluate: "eval"}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(NAMES.get(command), rich_help_panel=panel)(command)
app.command("evaluate", hidden=True)(evaluate)  # a second name


def _print_version(wanted: bool) -> None:
    if wanted:
        from unstable import __version__

        typer.echo(f"unstable {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train language models by letting them play games against themselves.

    Every command has --help with examples, and --json.

    [bold]Examples[/]

      unstable train                a small model learns TicTacToe on one CPU core
      unstable watch RUN            the status of a run
      unstable play RUN             play against its newest checkpoint
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an expected error is one line, not a traceback.

    Exit status: 0 completed, 1 failed, 2 bad arguments or files, 130 interrupted.
    """
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(args=command_line, prog_name="unstable")
    except CommandError as error:
        _fail(error, command_line)
    except ValueError as error:
        from unstable.config import ConfigError

        if not isinstance(error, ConfigError):
            raise
        _fail(UsageError(error), command_line)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(error: CommandError, command_line: Sequence[str]) -> NoReturn:
    if "--json" in command_line:
        print_json({"error": str(error)})
    complain(error)
    sys.exit(error.status)


def terminal_main() -> None:
    """Run `unstable terminal`; entry point of `unstable-terminal`."""
    main(["terminal", *sys.argv[1:]])


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM as an interrupt: children end, temporary files are removed."""
    # It may end a task that nobody awaits; asyncio would log that.
    logging.getLogger("asyncio").disabled = True
    interrupt(number, frame)


if __name__ == "__main__":
    main()
