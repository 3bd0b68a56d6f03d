"""The embedded model, made with progress when a run needs it; and `unstable tiny`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from unstable.commands.console import (
    CommandError,
    JsonFlag,
    UsageError,
    err,
    out,
    print_json,
    require_selfplay,
)
from unstable.games.runner import GameError

if TYPE_CHECKING:
    from unstable.config import RunConfig
    from unstable.tiny import TinyProgress

EMBEDDED = "tiny"
PACKAGED = "smollm2"
DEFAULT_GAME = "TicTacToe-v0-train"


def base_model(config: RunConfig, *, quiet: bool) -> str:
    """The model a run begins with; those that come with us are made first, if need be."""
    if config.model == PACKAGED:
        return _packaged(quiet=quiet)
    if config.model != EMBEDDED:
        return config.model
    from unstable.tiny import tiny_model

    games = [(env_id, n) for env_id, n, _ in (*config.games.train, *config.games.evaluated)]
    with _progress(quiet) as report:
        try:
            return tiny_model(tuple(dict.fromkeys(games)), progress=report)
        except (GameError, LookupError) as error:
            raise UsageError(f"the embedded model cannot play this: {error}") from error


def _packaged(*, quiet: bool) -> str:
    from unstable.tiny.smollm2 import smollm2_model

    with err.status("unpacking SmolLM2") if not quiet else nullcontext():
        try:
            return smollm2_model()
        except LookupError as error:
            raise UsageError(str(error)) from error


def tiny(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; a new folder.")],
    game: Annotated[
        list[str], typer.Option(metavar="ENV_ID", help="A game to warm it up on; can be repeated.")
    ] = [DEFAULT_GAME],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same model.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Make the embedded model, of under a million parameters.

    It is warmed up on random legal games.

    [bold]Examples[/]

      unstable tiny my-model
      unstable tiny my-model --game TicTacToe-v0-train --game Nim-v0-train --seed 1
    """
    from unstable.tiny import make_tiny

    require_selfplay()
    with _progress(as_json) as report:
        try:
            written = make_tiny(folder, tuple(game), seed, report)
        except (FileExistsError, GameError, LookupError) as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{folder} cannot be written: {error.strerror}") from error
    if as_json:
        print_json({"folder": str(written.absolute()), "games": game, "seed": seed})
    else:
        out.print(f"{written}: train it with `unstable train --model {written}`", soft_wrap=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[TinyProgress], None]]:
    """A bar on standard error that appears when there is something to do."""
    bar = Bar(
        TextColumn("embedded model: {task.description:<8}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    )
    tasks: dict[str, TaskID] = {}

    def report(progress: TinyProgress) -> None:
        bar.start()
        if progress.phase not in tasks:
            tasks[progress.phase] = bar.add_task(progress.phase, total=progress.total)
        bar.update(tasks[progress.phase], completed=progress.done, total=progress.total)

    try:
        yield report
    finally:
        bar.stop()
