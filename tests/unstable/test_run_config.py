"""A run's configuration: checked field by field; and parts of one's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from processes import within
from small_run import SMALL

from unstable.cli import main
from unstable.config import ConfigError, load_config, make_config
from unstable.run import RunFolder
from unstable.run.parts import check, collector_arguments, learner_arguments
from unstable.run.start import start
from unstable.utils.templates import TEMPLATES


def test_every_bad_field_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("updatess = 7\n[learner]\nlearning_rate = -1\n[games]\ntrain = [1]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    for part in (str(path), "updatess: no such field", "learner.learning_rate", "games.train.0"):
        assert part in message


@pytest.mark.parametrize(("text", "words"), [("a = ", "not TOML"), (None, "cannot be read")])
def test_unreadable_configuration_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "run.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(path)


def test_full_parameters_need_the_transformers_engine() -> None:
    whole = {"learner": {"options": {"full_parameters": True}}}
    config = make_config(whole)
    assert collector_arguments(config, "m")["vllm_config"]["engine"] == "transformers"
    assert learner_arguments(config, "m")["lora_cfg"] is None
    with pytest.raises(ConfigError, match=r"learner.options.full_parameters.*transformers"):
        collector_arguments(make_config({**whole, "engine": {"kind": "vllm"}}), "m")


@pytest.mark.parametrize("name", ["foo", "model_pool", "learning_rate"])
def test_unknown_learner_options_are_named(name: str) -> None:
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
            "not a multiple of 4",
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
def test_check_refuses_impossible_configurations(
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


MODULE = """
import textarena
from textarena.envs.registration import ENV_REGISTRY, register
from unstable.algorithms import Reinforce
from unstable.games.players import RandomLegal
from unstable.reward_transformations import FinalRewardTransform
from unstable.samplers import MirrorSampler

if "Mine-v0" not in ENV_REGISTRY:
    register("Mine-v0", "textarena.envs.TicTacToe.env:TicTacToeEnv")

used = []

class Algorithm(Reinforce):
    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.factor = factor

    def advantages(self, samples):
        used.append("algorithm")
        return [self.factor * sample.step.reward for sample in samples]

class Double(FinalRewardTransform):
    def __init__(self, by: float = 2.0):
        self.by = by

    def __call__(self, x, env_id=None):
        used.append("transform")
        return {pid: self.by * reward for pid, reward in x.items()}

class Sampler(MirrorSampler):
    def weights(self, pool, me):
        used.append("sampler")
        return super().weights(pool, me)

class Opponent(RandomLegal):
    def act(self, game):
        used.append("opponent")
        return super().act(game)

def extract(text):
    used.append("extraction")
    return f"[{text.strip()[:1]}]", {"correct_answer_format": True}
"""


@pytest.fixture
def config(tmp_path: Path, model: str) -> Iterator[Path]:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "my_parts.py").write_text(MODULE)
    values = {
        **SMALL,
        "model": model,
        "updates": 1,
        "games_per_update": 2,
        "eval_games": 2,
        "plugins": ["my_parts"],
        "templates": {"brief": {"instruction": "Answer with a cell.", "markup": "plain"}},
        "games": {
            **SMALL["games"],
            "train": [["TicTacToe-v0-train", 2, "brief"]],
            "opponent": "my_parts:Opponent",
            "action_extraction": "my_parts:extract",
        },
        "engine": {"max_model_len": 128},
        "pool": {"sample_mode": "my_parts:Sampler"},
        "buffer": {"final": [{"type": "my_parts:Double", "by": 3.0}]},
        "learner": {"algorithm": "my_parts:Algorithm", "algorithm_options": {"factor": 0.5}},
    }
    path = tmp_path / "here" / "run.toml"
    path.write_text(tomli_w.dumps(values))
    yield path
    sys.modules.pop("my_parts", None)
    sys.path[:] = [folder for folder in sys.path if folder != str(path.parent)]
    TEMPLATES.pop("brief", None)


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    return int(left.value.code or 0)


def test_custom_parts_are_used_and_found_on_resume(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", config, "--output-dir", tmp_path / "out", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    parts = {"algorithm", "transform", "sampler", "opponent", "extraction"}
    assert set(sys.modules["my_parts"].used) == parts
    assert result["evaluations"][-1]["opponent"] == "my_parts:Opponent"
    folder = RunFolder(result["run_dir"])
    assert folder.config().import_path == (str(config.parent),)
    first = (folder.path / "games" / "train.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["moves"][0]["action"].startswith("[")

    # As another process, which has never heard of it.
    del sys.modules["my_parts"], TEMPLATES["brief"]
    sys.path.remove(str(config.parent))
    assert run("resume", folder.path, "--updates", 2, "--json") == 2  # they would run unasked
    assert "--trust" in json.loads(capsys.readouterr().out)["error"]
    assert run("resume", folder.path, "--updates", 2, "--trust", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2
    assert set(sys.modules["my_parts"].used) == parts
    assert run("eval", folder.path, "--trust", "--games", 2, "--max-tokens", 2, "--json") == 0


def test_games_of_a_plugin_can_be_trained_on(config: Path) -> None:
    from unstable.run.parts import check

    text = config.read_text().replace("TicTacToe-v0-train", "Mine-v0")
    config.write_text(text.replace("compact_views = true", "compact_views = false"))
    loaded = load_config(config)
    opponent = loaded.games.model_copy(update={"opponent": "my_parts:Opponent"})
    check(loaded.model_copy(update={"games": opponent}))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("my_parts:Algorithm", "my_parts:Nothing", "my_parts has no 'Nothing'"),
        ("my_parts:Algorithm", "other_parts:Algorithm", "no module 'other_parts'"),
        ("my_parts:Algorithm", "my_parts:Double", "not a subclass of unstable.core.BaseAlgo"),
        ("factor = 0.5", 'factor = "half"', "learner.algorithm_options: factor is 'half'"),
        ("factor = 0.5", "faktor = 0.5", "no faktor; there are factor"),
        ("by = 3.0", "by = true", "my_parts:Double: by is True"),
        ("my_parts:Sampler", "my_parts:None_", "my_parts has no 'None_'"),
        ("my_parts:extract", "my_parts:missing", "my_parts has no 'missing'"),
        ('plugins = [\n    "my_parts",\n]', 'plugins = ["gone"]', "plugins: no module 'gone'"),
        ('"brief"', '"long"', "no prompt template 'long'"),
    ],
)
def test_wrong_custom_parts_leave_no_folder(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    text = config.read_text()
    assert old in text, text
    config.write_text(text.replace(old, new))
    assert run("train", config, "--output-dir", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert words in said.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ray_actors_find_custom_parts(config: Path, tmp_path: Path, model: str) -> None:
    loaded = load_config(config, mode="ray", batch_size=8, eval_workers=2)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_config(loaded)
    with within(240):
        result = start(loaded, folder, model, lambda _: None)
    assert result.step == 1
    assert result.evaluations[-1]["opponent"] == "my_parts:Opponent"
    assert result.counts["failed"] == 0
