"""The `p2p` command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from p2p.commands.attack import attack
from p2p.commands.benchmark import benchmark_app
from p2p.commands.catalogue import check, envs, rewards
from p2p.commands.console import CommandGroup, run_app
from p2p.commands.doctor import doctor
from p2p.commands.engines import app as engines
from p2p.commands.jobs import app as jobs
from p2p.commands.label import label
from p2p.commands.nodes import app as nodes
from p2p.commands.run import ResumeCommand, RunCommand, resume, run
from p2p.commands.runs import evaluate, export, play
from p2p.commands.scheduler import app as scheduler
from p2p.commands.serve import serve
from p2p.commands.sessions import analyze, delete, rename, sessions, show, trash
from p2p.commands.steering import steer, stop
from p2p.commands.train import train

app = typer.Typer(
    name="p2p",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "From a prompt": (
        run,
        resume,
        sessions,
        show,
        stop,
        steer,
        analyze,
        label,
        attack,
        serve,
        rename,
        delete,
        trash,
    ),
    "Rewards and policies": (train, check, rewards, evaluate, play, export),
    "This machine": (envs, doctor),
}
CLASSES = {run: RunCommand, resume: ResumeCommand}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel, cls=CLASSES.get(command))(command)
GROUPS = {"benchmark": benchmark_app, "jobs": jobs, "nodes": nodes, "scheduler": scheduler}
for name, group in GROUPS.items():
    app.add_typer(group, name=name, rich_help_panel="Many runs")
app.add_typer(engines, name="engines", rich_help_panel="This machine")


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
    """Prompt2Policy: a prompt in, a trained, judged and watchable policy out.

    [bold]Examples[/] (every command has more with --help, and --json)

      p2p run "run forward fast"         from a prompt
      p2p train halfcheetah_run_forward  from a reward file, or a built-in one
      p2p show last                      result of the last session
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: whatever goes wrong as it may is one line, not a traceback.

    Exit status: 0 done, 1 it failed, 2 bad arguments or files, 130 interrupted.
    """
    run_app(app, "p2p", arguments)


if __name__ == "__main__":
    main()
