"""Models that commands name: found on disk, or made when they are needed; and `unstable tiny`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from unstable.commands import (
    CommandError,
    JsonFlag,
    UsageError,
    err,
    out,
    print_json,
    require_selfplay,
)
from unstable.config import RunConfig
from unstable.games import GameError
from unstable.run import RunFolder

if TYPE_CHECKING:
    from unstable.tiny import TinyProgress


SMALL_VOCABULARY = 1024
"""Models that know no more tokens read bytes: short boards, not a page of rules."""


@dataclass(frozen=True)
class ModelFolder:
    """A model that can play, and how it is used to being asked."""

    model: str
    """Its folder, or the name it has on Hugging Face."""
    adapter: str | None = None
    """The folder of the adapter that is used with it."""
    short_boards: bool = False
    """Whether it is shown a short board instead of the game's text."""
    template: str = "default"
    extraction: str = "default"
    env_id: str | None = None
    """The game it was trained on, if that is known."""
    players: Mapping[str, int] = field(default_factory=dict)
    """By the games of its run, with how many they were played."""
    step: int = 0
    """Updates of the checkpoint, where its folder says so."""
    config: RunConfig | None = None
    """Of its run."""


def find_model(folder: Path, *, trusted: bool = False) -> ModelFolder:
    """The model in a folder: of a run, the newest checkpoint.

    Raises UsageError: there is none, or the run names code and is not `trusted`.
    """
    if (folder / "checkpoints").is_dir():
        return find_model(newest_checkpoint(folder / "checkpoints"), trusted=trusted)
    run = folder.absolute().parent.parent
    is_checkpoint = folder.absolute().parent.name == "checkpoints"
    model = _find_plain(folder)
    if is_checkpoint and (run / "config.json").exists():
        return _as_trained(model, run, trusted)
    return model


def _find_plain(folder: Path) -> ModelFolder:
    if (folder / "adapter_config.json").is_file():
        base = _json(folder / "adapter_config.json").get("base_model_name_or_path")
        if not base:
            raise UsageError(f"{folder}/adapter_config.json does not say which model it is for")
        return replace(_plain(str(base)), adapter=str(folder), step=_step(folder) or 0)
    if (folder / "config.json").is_file():
        return replace(_plain(str(folder)), step=_step(folder) or 0)
    raise UsageError(f"{folder} is neither a run nor a checkpoint nor a model's folder")


def newest_checkpoint(checkpoints: Path) -> Path:
    """The checkpoint of the learner's last saved step. Raises UsageError: none was saved."""
    steps = {
        step: path
        for path in checkpoints.iterdir()
        if path.is_dir() and (step := _step(path)) is not None
    }
    if not steps:
        raise UsageError(f"{checkpoints} has no checkpoint yet")
    return steps[max(steps)]


def _step(checkpoint: Path) -> int | None:
    match = re.fullmatch(r"iteration-(\d+)", checkpoint.name)
    return int(match[1]) if match else None


def _as_trained(model: ModelFolder, run: Path, trusted: bool) -> ModelFolder:
    """Asked as in the run's first game."""
    from unstable.run.parts import prepare

    try:
        config = RunFolder(run).config_to_run(trusted=trusted)
        prepare(config)
        games = config.games
    except ValueError as error:
        raise UsageError(str(error)) from error
    env_id, _, template = games.train[0]
    return replace(
        model,
        short_boards=games.compact_views,
        template=template,
        extraction=games.action_extraction,
        env_id=env_id,
        players={game: players for game, players, _ in (*games.evaluated, *games.train)},
        config=config,
    )


def _plain(model: str) -> ModelFolder:
    path = Path(model) / "config.json"
    size = _json(path).get("vocab_size") if path.is_file() else None
    if isinstance(size, int) and size <= SMALL_VOCABULARY:
        return ModelFolder(model, short_boards=True, template="bare", extraction="bare")
    return ModelFolder(model)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}


EMBEDDED = "tiny"
PACKAGED = "smollm2"
DEFAULT_GAME = "TicTacToe-v0-train"


def base_model(config: RunConfig, *, quiet: bool) -> str:
    """The model a run begins with; those that come with us are made first, if need be."""
    if config.model == PACKAGED:
        return _load_packaged(quiet=quiet)
    if config.model != EMBEDDED:
        return config.model
    from unstable.tiny import tiny_model

    games = [(env_id, n) for env_id, n, _ in (*config.games.train, *config.games.evaluated)]
    with _progress(quiet) as report:
        try:
            return tiny_model(tuple(dict.fromkeys(games)), progress=report)
        except (GameError, LookupError) as error:
            raise UsageError(f"the embedded model cannot play this: {error}") from error


def _load_packaged(*, quiet: bool) -> str:
    from unstable.tiny import smollm2_model

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
