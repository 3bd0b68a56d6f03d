"""The recipe of `unstable train`, as it stands, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

import unstable
from unstable.config import load_config
from unstable.run import RunFolder
from unstable.run.start import start
from unstable.tiny import WarmUp, make_tiny

RECIPES = sorted((Path(unstable.__file__).parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize(
    ("recipe", "env_id"),
    list(zip(RECIPES, ("Nim-v0-train", "TicTacToe-v0-train"), strict=True)),
    ids=lambda value: getattr(value, "stem", value),
)
def test_a_recipe_plays_learns_and_is_measured(recipe, env_id, tmp_path):
    model = make_tiny(tmp_path / "model", [env_id], warm_up=WarmUp(games=10, steps=20))
    config = load_config(
        recipe, model=str(model), updates=1, games_per_update=8, workers=8, eval_games=4
    )
    games = config.games.model_copy(update={"train": ((env_id, 2, "bare"),)})
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_config(config)
    result = start(config.model_copy(update={"games": games}), folder, str(model), lambda _: None)
    assert result.step == 1
    assert result.checkpoint is not None
    assert [row["games"] for row in result.evaluations] == [4, 4]
    assert (Path(result.checkpoint) / "adapter_model.safetensors").is_file()
