"""`unstable eval`: how well a checkpoint plays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from unstable.commands import (
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
from unstable.config import (
    ConfigError,
    EngineConfig,
    EnvTriple,
    GamesConfig,
    RunConfig,
    SamplingConfig,
)
from unstable.games.players import FIRST_CHECKPOINT, RANDOM_LEGAL

if TYPE_CHECKING:
    from unstable.commands.models import ModelFolder

WORKERS = 256
DEFAULT_GAME, DEFAULT_GAMES = "TicTacToe-v0-train", 400
C = TypeVar("C", bound=BaseModel)


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
            show_default="the run's, or random-legal, and of a checkpoint the first one",
        ),
    ] = None,
    games: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of each game, in turn from every seat.", show_default="the run's, or 400"
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Of the model.", show_default="the run's, or 1"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, help="Of the model.", show_default="the run's, or 1"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of an answer.", show_default="the run's, or 1024")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same seed, the same games.", show_default="the run's, or 0"),
    ] = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Play a checkpoint against fixed opponents.

    A run's checkpoint plays as in the run's own evaluations, and gets the same numbers.
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
    config = model.config or _config_of(model)
    sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    config = _override(
        config,
        seed=seed,
        eval_games=games or (None if config.eval_games else DEFAULT_GAMES),
        games=_override(
            config.games,
            evaluate=_choose_games(model, config, game or [], players),
            opponent=tuple(opponent) if opponent else None,
        ),
        sampling=_override(config.sampling, **sampling),
    )
    with err.status(f"{config.eval_games} games"):
        try:
            rows = asyncio.run(_evaluate(model, config))
        except ConfigError as error:
            raise UsageError(str(error)) from error
    if as_json:
        print_json(rows)
    for row in rows:
        if not as_json:
            out.print(evaluation_words(row), soft_wrap=True)
        if row["failed"] and not row["games"]:
            raise CommandError(f"{row['env_id']}: every game failed: {row['error']}")


def _override(section: C, **changes: Any) -> C:
    """The same but for what is not None."""
    named = {name: value for name, value in changes.items() if value is not None}
    return section.model_copy(update=named)


def _config_of(model: ModelFolder) -> RunConfig:
    """How a model without a run is measured."""
    return RunConfig(
        model=model.model,
        workers=WORKERS,
        eval_games=DEFAULT_GAMES,
        games=GamesConfig(
            train=((DEFAULT_GAME, 2, model.template),),
            compact_views=model.short_boards,
            action_extraction=model.extraction,
            opponent=(RANDOM_LEGAL, *([FIRST_CHECKPOINT] if model.adapter else [])),
        ),
        sampling=SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=1024),
        engine=EngineConfig(max_parallel_seq=WORKERS),
    )


def _choose_games(
    model: ModelFolder, config: RunConfig, env_ids: list[str], players: int | None
) -> tuple[EnvTriple, ...]:
    from unstable.games import GameError
    from unstable.games.players import fewest_players

    known = {env_id: (n, template) for env_id, n, template in config.games.evaluated}
    chosen = []
    for env_id in env_ids or known:
        trained, template = known.get(env_id, (model.players.get(env_id), model.template))
        try:
            chosen.append((env_id, players or trained or fewest_players(env_id), template))
        except GameError as error:
            raise UsageError(f"--game {env_id}: {error}") from error
    return tuple(chosen)


async def _evaluate(model: ModelFolder, config: RunConfig) -> list[dict[str, Any]]:
    from unstable.buffer import StepBuffer
    from unstable.collector import Collector
    from unstable.games.rules import BOARDS, game_name
    from unstable.model_pool import ModelPool
    from unstable.run.parts import BASE_ITERATION, collector_arguments, refusals_are_mistakes
    from unstable.utils.logging import quiet_transformers

    quiet_transformers()
    pool = ModelPool("mirror", 2)
    pool.add_checkpoint(None, model.step if model.adapter is None else BASE_ITERATION)
    if model.adapter is not None:
        pool.add_checkpoint(model.adapter, model.step)
    with refusals_are_mistakes():
        arguments = collector_arguments(config, model.model) | {"training_envs": ()}
        if not all(game_name(env_id) in BOARDS for env_id, *_ in config.games.evaluated):
            # A model that reads bytes gets the game's own text where there is nothing shorter.
            arguments["compact_views"] = False
        collector = Collector(step_buffer=StepBuffer(1), model_pool=pool, tracker=None, **arguments)
    try:
        return await collector.evaluate(config.eval_games, config.workers)
    finally:
        await collector.close()
