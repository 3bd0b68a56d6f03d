"""`unstable watch` and `unstable terminal`: a run's dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstable.commands import (
    CommandError,
    JsonFlag,
    UsageError,
    err,
    out,
    print_json,
)
from unstable.config import require_selfplay

if TYPE_CHECKING:
    from unstable.dashboard import Source

OnceFlag = Annotated[bool, typer.Option("--once", help="Print it once as text.")]


def watch(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="The run's folder.", show_default="the newest below outputs/"
        ),
    ] = None,
    once: OnceFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Show a run from its files, while it runs or after it has ended.

    Keys: 1, 2, 3 or left and right for the tabs, Tab for the next panel, q to
    quit; the run continues. Without a terminal it is printed once.

    [bold]Examples[/]

      unstable watch
      unstable watch outputs/2026-11-15/10-00-00/demo --once
    """
    from unstable.dashboard import SourceError
    from unstable.dashboard.sources import RunFiles
    from unstable.interface import OUTPUTS, find_newest_run

    try:
        source = RunFiles(run or find_newest_run(OUTPUTS))
    except SourceError as error:
        raise UsageError(str(error)) from error
    _show(source, once=once, as_json=as_json)


def terminal(
    address: Annotated[str, typer.Option(help="Address of the Ray cluster.")] = "auto",
    namespace: Annotated[str, typer.Option(help="Namespace of the run's actors.")] = "unstable",
    once: OnceFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the run of a Ray cluster, live.

    Also called `unstable-terminal`. It asks the actors named Tracker and StepBuffer. Keys are
    those of `unstable watch`.

    [bold]Examples[/]

      unstable terminal
      unstable terminal --address 10.0.0.1:6379 --json
    """
    from unstable.dashboard.sources import ClusterRun

    require_selfplay(["ray"])
    source = ClusterRun(address, namespace)
    try:
        _show(source, once=once, as_json=as_json)
    finally:
        source.close()


def _show(source: Source, *, once: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from unstable.dashboard import SourceError
    from unstable.dashboard.drawing import draw_snapshot

    try:
        with err.status("connecting to the run"):
            view = source.fetch()
    except SourceError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json(asdict(view))
    elif once:
        out.print(draw_snapshot(view, out.width))
    else:
        try:
            from unstable.terminal_interface import show
        except ModuleNotFoundError as error:
            raise CommandError(
                "textual is not installed: pip install 'prompt2policy[selfplay]', or use --once"
            ) from error
        show(source, view)
