"""A run's configuration: what is written is checked, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unstable.config import ConfigError, load_config, make_config
from unstable.run.parts import check, collector_arguments, learner_arguments


def test_every_bad_field_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("updatess = 7\n[learner]\nlearning_rate = -1\n[games]\ntrain = [1]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    for part in (str(path), "updatess: no such field", "learner.learning_rate", "games.train.0"):
        assert part in message


@pytest.mark.parametrize(("text", "words"), [("a = ", "not TOML"), (None, "cannot be read")])
def test_a_file_that_is_none_is_said(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "run.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(path)


def test_whole_models_are_trained_with_the_engine_that_can_change_them() -> None:
    whole = {"learner": {"options": {"full_parameters": True}}}
    config = make_config(whole)
    assert collector_arguments(config, "m")["vllm_config"]["engine"] == "transformers"
    assert learner_arguments(config, "m")["lora_cfg"] is None
    with pytest.raises(ConfigError, match=r"learner.options.full_parameters.*transformers"):
        collector_arguments(make_config({**whole, "engine": {"kind": "vllm"}}), "m")


@pytest.mark.parametrize("name", ["foo", "model_pool", "learning_rate"])
def test_options_that_the_learner_does_not_take_are_named(name: str) -> None:
    config = make_config({"learner": {"options": {name: 1}}})
    with pytest.raises(ConfigError, match=rf"learner.options: no {name}; .*full_parameters"):
        learner_arguments(config, "m")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner": {"algorithm": "GRPO"}}, 'buffer.strategy = "groups" and games.group_size'),
        ({"learner": {"algorithm": "RLOO"}, "buffer": {"strategy": "episodes"}}, "begin alike"),
        ({"learner": {"algorithm": "A2C"}}, 'buffer.strategy = "episodes"'),
        ({"buffer": {"strategy": "groups"}}, "games.group_size of 2"),
        ({"buffer": {"strategy": "sometimes"}}, "no buffer strategy 'sometimes'"),
        (
            {"buffer": {"strategy": "groups"}, "games": {"group_size": 4}, "games_per_update": 6},
            "no groups of 4",
        ),
        ({"buffer": {"step": [{"type": "WinDrawLossFormatter"}]}}, "it belongs into buffer.final"),
        ({"buffer": {"sampling": [{"type": "NormalizeRewards", "z_score": "yes"}]}}, "z_score is"),
        ({"learner": {"algorithm_options": {"kl_coef": "much"}}}, "kl_coef is 'much'"),
        ({"learner": {"options": {"epochs": "2"}}}, "learner.options: epochs is '2'"),
        ({"learner": {"options": {"epochs": 0}}}, "epochs is 0"),
        ({"learner": {"options": {"lr_schedule": "zigzag"}}}, "zigzag"),
        ({"learner": {"options": {"dtype": "int3"}}}, "int3"),
        ({"games": {"train": [["TicTacToe-v0-train", 3, "bare"]]}}, "for 3 players"),
        ({"games": {"train": [["Sudoku-v0-train", 2, "bare"]]}}, "for 2 players"),
        ({"pool": {"sample_mode": "fixed"}}, "pool.fixed"),
        ({"pool": {"sample_mode": "best"}}, "no sample_mode 'best'"),
        ({"pool": {"ratings": "stars"}}, "stars"),
        ({"mode": "ray", "batch_size": 64, "buffer": {"max_size": 64}}, "buffer.max_size"),
        ({"model": "./nowhere"}, "model: there is no folder"),
        ({"games": {"opponent": ["random-legal", "first-checkpoint"]}}, None),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_made(
    changes: dict[str, Any], words: str | None
) -> None:
    values: dict[str, Any] = {"games": {"train": [["TicTacToe-v0-train", 2, "bare"]]}, **changes}
    config = make_config(values)
    if words is None:
        check(config)
        return
    with pytest.raises(ConfigError) as caught:
        check(config)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
