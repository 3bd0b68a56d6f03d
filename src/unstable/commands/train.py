"""`unstable train`, `unstable resume` and `unstable tiny`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unstable.commands import (
    CommandError,
    JsonFlag,
    TrustFlag,
    UsageError,
    err,
    out,
    print_json,
)
from unstable.config import require_selfplay

if TYPE_CHECKING:
    from unstable.interface import Run

AS_CONFIGURED = "what CONFIG.toml says"


def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]",
            help="The run's configuration.",
            show_default="the recipe of the embedded model",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's folder or Hugging Face id, `tiny` or `smollm2`.",
            show_default=AS_CONFIGURED,
        ),
    ] = None,
    game: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENV_ID",
            help="Train and evaluate on this game; repeatable.",
            show_default=AS_CONFIGURED,
        ),
    ] = None,
    players: Annotated[
        int | None,
        typer.Option(min=1, help="Seats of a game.", show_default="as configured, or the fewest"),
    ] = None,
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure against it, such as `first-checkpoint`; repeatable.",
            show_default=AS_CONFIGURED,
        ),
    ] = None,
    updates: Annotated[
        int | None, typer.Option(min=1, help="Number of updates.", show_default=AS_CONFIGURED)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Equal seeds give equal runs.", show_default=AS_CONFIGURED),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name.", show_default=AS_CONFIGURED)
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option(help="The run's folder is made below it.", show_default=AS_CONFIGURED),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a language model by self-play.

    Without a configuration the embedded model, small enough for one CPU core, learns TicTacToe.

    [bold]Examples[/]

      unstable train
      unstable train --game Nim-v0-train --updates 30 --seed 1
      unstable train --game LiarsDice-v0-train --players 3
      unstable train --model smollm2
      unstable train my_run.toml --json
    """
    from unstable import interface

    named = {
        "model": model, "updates": updates, "seed": seed, "name": name, "output_dir": output_dir,
    }  # fmt: skip
    with _training_errors():
        run = interface.train(
            config, game=game or (), players=players, opponent=opponent or (), quiet=as_json,
            **{field: value for field, value in named.items() if value is not None},
        )  # fmt: skip
    _print_result(run, as_json=as_json)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    updates: Annotated[
        int | None,
        typer.Option(min=1, help="Train up to this many updates in all.", show_default="as before"),
    ] = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Resume a run that was stopped or killed, or train it further.

    [bold]Examples[/]

      unstable resume outputs/2026-11-15/10-00-00/self-play
      unstable resume RUN --updates 400
    """
    from unstable import interface

    require_selfplay()
    with _training_errors():
        resumed = interface.load(run).resume(updates, trust=trust, quiet=as_json)
    _print_result(resumed, as_json=as_json)


def tiny(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the model.")],
    game: Annotated[
        list[str], typer.Option(metavar="ENV_ID", help="Warm it up on this game; repeatable.")
    ] = ["TicTacToe-v0-train"],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal models.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Make the embedded model, warmed up on random legal games.

    It has under a million parameters.

    [bold]Examples[/]

      unstable tiny my-model
      unstable tiny my-model --game TicTacToe-v0-train --game Nim-v0-train
    """
    from unstable.console import show_model_progress
    from unstable.games import GameError
    from unstable.tiny import make_tiny

    require_selfplay()
    with show_model_progress(quiet=as_json) as report:
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
def _training_errors() -> Iterator[None]:
    """Turn an error that a run may end with into one line with how to resume it."""
    try:
        yield
    except Exception as error:
        hint = " ".join(getattr(error, "__notes__", ()))
        if not hint:
            raise
        raise CommandError(f"{type(error).__name__}: {error}; {hint}") from error


def _print_result(run: Run, *, as_json: bool) -> None:
    result = run.result
    assert result is not None
    if as_json:
        print_json(
            {
                "run_dir": result.run_dir,
                "step": result.step,
                "checkpoint": result.checkpoint,
                "evaluations": list(result.evaluations),
                "counts": result.counts,
            }
        )
        return
    if troubles := _describe_losses(result.counts):
        err.print(troubles, soft_wrap=True)
    out.print(f"{result.step} updates; checkpoint: {result.checkpoint}", soft_wrap=True)


def _describe_losses(counts: Mapping[str, Any]) -> str:
    """Say what failed or was lost in a run that completed; empty: nothing."""
    words = {
        "failed": "training games failed",
        "eval_failed": "evaluation games failed",
        "actor_deaths": "engines died",
        "write_failures": "writes of metrics failed",
    }
    failures = [f"{counts[name]} {text}" for name, text in words.items() if counts.get(name)]
    parts = [", ".join(failures)] if failures else []
    lost = {name: n for name, n in counts["steps"].items() if n}
    sampled, _, _ = (lost.pop(name, 0) for name in ("sampled", "trained", "left"))
    if lost:
        reasons = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in lost.items())
        total = sum(lost.values())
        parts.append(f"{total} of {sampled} steps were not trained on ({reasons})")
    if parts and counts.get("last_failure"):
        parts.append(f"the last game: {counts['last_failure']}")
    return "; ".join(parts)
