"""The `p2p` command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

import typer

from p2p.commands.catalogue import envs, rewards
from p2p.commands.check import check
from p2p.commands.console import CommandError, complain, print_json
from p2p.commands.doctor import doctor
from p2p.commands.runs import evaluate, export, play
from p2p.commands.train import train

app = typer.Typer(
    name="p2p",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, evaluate, play, export, check, envs, rewards, doctor):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"p2p {version('prompt2policy')}")
        except PackageNotFoundError:
            typer.echo("p2p, not installed: run from its source")
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
    """Prompt2Policy: from a reward file to a trained, saved and watchable policy.

    Every command has --help with examples, and --json.

    [bold]Examples[/]

      p2p rewards                        what comes with it
      p2p train halfcheetah_run_forward  train, with curves and videos
      p2p play runs/SESSION/iter_1       watch the result
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: whatever goes wrong as it may is one line, not a traceback.

    Exit status: 0 done, 1 it failed, 2 bad arguments or files, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(args=given, prog_name="p2p")
    except CommandError as error:
        if "--json" in given:
            print_json({"error": str(error), "detail": error.detail})
        complain(error)
        sys.exit(error.status)


def _interrupt(number: int, _: FrameType | None) -> None:
    """To be terminated is to be interrupted: children end, temporary files go."""
    raise KeyboardInterrupt(signal.Signals(number).name)


if __name__ == "__main__":
    main()
