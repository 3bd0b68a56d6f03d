"""`unstable eval`, also called `unstable evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unstable.commands import (
    CommandError,
    JsonFlag,
    TrustFlag,
    UsageError,
    out,
    print_json,
)
from unstable.config import require_selfplay


def evaluate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="A run (its newest checkpoint), a checkpoint, or a model's folder.",
        ),
    ],
    game: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENV_ID",
            help="Play this game; repeatable.",
            show_default="the run's, or TicTacToe-v0-train",
        ),
    ] = None,
    players: Annotated[
        int | None,
        typer.Option(min=1, help="Seats of a game.", show_default="as trained, or the fewest"),
    ] = None,
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            help="random-legal, first-checkpoint (what the run started from), a model's or"
            " adapter's folder, or a remote model's name; repeatable.",
            show_default="the run's, or random-legal, and of a checkpoint the first one",
        ),
    ] = None,
    games: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Games per environment and opponent, in turn from every seat.",
            show_default="the run's, or 400",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Sampling temperature.", show_default="the run's, or 1"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, help="Nucleus sampling.", show_default="the run's, or 1"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens per answer.", show_default="the run's, or 1024"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Equal seeds give equal games.", show_default="the run's, or 0"),
    ] = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure a checkpoint against fixed opponents.

    A run's checkpoint plays as in the run's own evaluations.
    Win rates have 95 % intervals. Single-player games report the mean reward.
    KuhnPoker on short boards also has the exploitability: what a best response
    to the policy, sampled at temperature 1, earns per game.

    [bold]Examples[/]

      unstable eval RUN
      unstable eval RUN/checkpoints/iteration-20 --game Nim-v0-train --games 1000
      unstable evaluate MODEL --game LiarsDice-v0-train --players 3
    """
    from unstable import interface
    from unstable.console import describe_evaluation

    require_selfplay()
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    rows = interface.evaluate(
        folder, game=game or (), players=players, opponent=opponent or (), games=games,
        temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed, trust=trust,
    )  # fmt: skip
    if as_json:
        print_json(rows)
    for row in rows:
        if not as_json:
            out.print(describe_evaluation(row), soft_wrap=True)
        if row["failed"] and not row["games"]:
            raise CommandError(f"{row['env_id']}: every game failed: {row['error']}")
