"""Models on disk: of runs, checkpoints and folders; and the built-in ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.config import ConfigError, RunConfig
from unstable.run import RunFolder

if TYPE_CHECKING:
    from unstable.tiny import TinyProgress

SMALL_VOCABULARY = 1024
"""A model with no more tokens reads bytes, and gets short boards instead of the game's text."""
EMBEDDED, PACKAGED = "tiny", "smollm2"


@dataclass(frozen=True)
class ModelFolder:
    """A model that can play, and the prompts that it is used to."""

    model: str
    """A folder, or a name on Hugging Face."""
    adapter: str | None = None
    """The folder of its adapter."""
    short_boards: bool = False
    """Whether it gets a short board instead of the game's text."""
    template: str = "default"
    extraction: str = "default"
    env_id: str | None = None
    """The game it was trained on, if known."""
    players: Mapping[str, int] = field(default_factory=dict)
    """Number of players by game of its run."""
    step: int = 0
    """Updates of the checkpoint, where its folder says so."""
    config: RunConfig | None = None
    """The configuration of its run."""


def find_model(folder: Path, *, trusted: bool = False) -> ModelFolder:
    """Find the model in a folder: of a run, the newest checkpoint.

    Raises:
        ConfigError: there is none, or the run names code and is not `trusted`.
    """
    if (folder / "checkpoints").is_dir():
        return find_model(find_newest_checkpoint(folder / "checkpoints"), trusted=trusted)
    run = folder.absolute().parent.parent
    model = _find_plain(folder)
    if folder.absolute().parent.name == "checkpoints" and (run / "config.json").exists():
        return _apply_run_settings(model, run, trusted)
    return model


def find_newest_checkpoint(checkpoints: Path) -> Path:
    """Return the checkpoint of the last saved update; raise ConfigError where there is none."""
    saved = [
        (step, path)
        for path in checkpoints.iterdir()
        if path.is_dir() and (step := _read_step(path)) is not None
    ]
    if not saved:
        raise ConfigError(f"{checkpoints} has no checkpoint yet")
    return max(saved)[1]


def make_base_model(
    config: RunConfig, progress: Callable[[TinyProgress], None] | None = None
) -> str:
    """Return the model that a run starts from; a built-in one is made when it is first needed.

    Raises:
        ConfigError: it cannot be made.
    """
    if config.model not in (EMBEDDED, PACKAGED):
        return config.model
    from unstable.games import GameError
    from unstable.tiny import smollm2_model, tiny_model

    games = [(env_id, n) for env_id, n, _ in (*config.games.train, *config.games.evaluated)]
    try:
        if config.model == PACKAGED:
            return smollm2_model()
        return tiny_model(tuple(dict.fromkeys(games)), progress=progress)
    except (GameError, LookupError) as error:
        raise ConfigError(f"model {config.model}: {error}") from error


def _find_plain(folder: Path) -> ModelFolder:
    if (folder / "adapter_config.json").is_file():
        base = _read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        if not base:
            raise ConfigError(f"{folder}/adapter_config.json does not say which model it is for")
        return replace(_describe(str(base)), adapter=str(folder), step=_read_step(folder) or 0)
    if (folder / "config.json").is_file():
        return replace(_describe(str(folder)), step=_read_step(folder) or 0)
    raise ConfigError(f"{folder} is not a run, a checkpoint or a model's folder")


def _apply_run_settings(model: ModelFolder, run: Path, trusted: bool) -> ModelFolder:
    """Prompt the model as the run's first training game does."""
    from unstable.run.parts import register_own_parts

    try:
        config = RunFolder(run).config_to_run(trusted=trusted)
        register_own_parts(config)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    games = config.games
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


def _describe(model: str) -> ModelFolder:
    path = Path(model) / "config.json"
    size = _read_json(path).get("vocab_size") if path.is_file() else None
    if isinstance(size, int) and size <= SMALL_VOCABULARY:
        return ModelFolder(model, short_boards=True, template="bare", extraction="bare")
    return ModelFolder(model)


def _read_step(checkpoint: Path) -> int | None:
    match = re.fullmatch(r"iteration-(\d+)", checkpoint.name)
    return int(match[1]) if match else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}
