"""`unstable eval`: how well a checkpoint plays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unstable.commands.console import (
    CommandError,
    JsonFlag,
    TrustFlag,
    UsageError,
    err,
    out,
    print_json,
    require_selfplay,
)
from unstable.commands.models import find_model
from unstable.commands.train import evaluation_words
from unstable.config import ConfigError
from unstable.games.players import FIRST_CHECKPOINT, RANDOM_LEGAL

if TYPE_CHECKING:
    from unstable.commands.models import ModelFolder

WORKERS = 256
DEFAULT_GAME = "TicTacToe-v0-train"


def evaluate(
    who: Annotated[
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
            help="Can be repeated.",
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
            help="random-legal, first-checkpoint (what the run began with), a model's or adapter's"
            " folder, or a remote model's name; can be repeated.",
            show_default="random-legal, and of a checkpoint the first one",
        ),
    ] = None,
    games: Annotated[int, typer.Option(min=1, help="Of each game, in turn from every seat.")] = 400,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the model.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same games.")] = 0,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Play a checkpoint against fixed opponents.

    Win rates have 95 % intervals.
    Games for one have no opponent: they are told by their mean reward. Of KuhnPoker on short
    boards the exploitability is computed too: what a best response to the policy, as it answers at
    temperature 1, gets a game (0: nothing).

    [bold]Examples[/]

      unstable eval RUN
      unstable eval RUN/checkpoints/iteration-20 --game Nim-v0-train --games 1000 --json
      unstable eval MODEL --game LiarsDice-v0-train --players 3
    """
    require_selfplay()
    if not who.is_dir():
        raise UsageError(f"{who} is not a folder")
    model = find_model(who, trusted=trust)
    envs = [
        (env_id, players or model.players.get(env_id) or _fewest_players(env_id), model.template)
        for env_id in game or [model.env_id or DEFAULT_GAME]
    ]
    opponents = opponent or [RANDOM_LEGAL, *([FIRST_CHECKPOINT] if model.adapter else [])]
    sampling = {"temperature": temperature, "top_p": 1.0, "max_tokens": max_tokens}
    with err.status(f"{games} games"):
        try:
            rows = asyncio.run(_evaluate(model, envs, opponents, games, sampling, seed))
        except ConfigError as error:
            raise UsageError(str(error)) from error
    if as_json:
        print_json(rows)
    for row in rows:
        if not as_json:
            out.print(evaluation_words(row), soft_wrap=True)
        if row["failed"] and not row["games"]:
            raise CommandError(f"{row['env_id']}: every game failed: {row['error']}")


def _fewest_players(env_id: str) -> int:
    from unstable.games.catalog import probe

    entry = probe(env_id)
    if entry.num_players is None:
        raise UsageError(f"--game {env_id}: {entry.reason}; `unstable games` lists what runs here")
    return entry.num_players


async def _evaluate(
    model: ModelFolder,
    envs: list[tuple[str, int, str]],
    opponents: list[str],
    games: int,
    sampling: dict[str, Any],
    seed: int,
) -> list[dict[str, Any]]:
    from unstable.buffer import StepBuffer
    from unstable.collector import Collector
    from unstable.games.rules import BOARDS, game_name
    from unstable.model_pool import ModelPool
    from unstable.run.parts import refusals_are_mistakes
    from unstable.utils.logging import quiet_transformers

    quiet_transformers()
    # A model that reads bytes gets the game's own text where there is nothing shorter.
    short_boards = model.short_boards and all(game_name(env_id) in BOARDS for env_id, *_ in envs)
    pool = ModelPool("mirror", 2)
    pool.add_checkpoint(None, 0 if model.adapter is None else -1)
    if model.adapter is not None:
        pool.add_checkpoint(model.adapter, model.step)
    engine = {"model_name": model.model, "max_parallel_seq": WORKERS, **sampling}
    with refusals_are_mistakes():
        collector = Collector(
            1, StepBuffer(1), pool, None, engine, training_envs=[], evaluation_envs=envs,
            evaluation_opponent=opponents, action_extraction=model.extraction,
            compact_views=short_boards, seed=seed,
        )  # fmt: skip
    try:
        return await collector.evaluate(games, WORKERS)
    finally:
        await collector.close()
