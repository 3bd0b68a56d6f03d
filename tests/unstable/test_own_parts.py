"""Parts of one's own from a configuration: found, checked, used, and found again on resuming."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from processes import within
from small_run import SMALL

from unstable.cli import main
from unstable.config import load_config
from unstable.run import RunFolder
from unstable.run.start import start
from unstable.utils.templates import TEMPLATES

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


def test_a_run_uses_parts_of_ones_own_and_a_resumed_one_finds_them(
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
        ("my_parts:Algorithm", "my_parts:Double", "no subclass of unstable.core.BaseAlgo"),
        ("factor = 0.5", 'factor = "half"', "learner.algorithm_options: factor is 'half'"),
        ("factor = 0.5", "faktor = 0.5", "no faktor; there are factor"),
        ("by = 3.0", "by = true", "my_parts:Double: by is True"),
        ("my_parts:Sampler", "my_parts:None_", "my_parts has no 'None_'"),
        ("my_parts:extract", "my_parts:missing", "my_parts has no 'missing'"),
        ('plugins = [\n    "my_parts",\n]', 'plugins = ["gone"]', "plugins: no module 'gone'"),
        ('"brief"', '"long"', "no prompt template 'long'"),
    ],
)
def test_what_is_wrong_with_them_is_said_and_leaves_no_folder(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    text = config.read_text()
    assert old in text, text
    config.write_text(text.replace(old, new))
    assert run("train", config, "--output-dir", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_actors_of_a_run_on_ray_find_them_too(config: Path, tmp_path: Path, model: str) -> None:
    loaded = load_config(config, mode="ray", batch_size=8, eval_workers=2)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_config(loaded)
    with within(240):
        result = start(loaded, folder, model, lambda _: None)
    assert result.step == 1
    assert result.evaluations[-1]["opponent"] == "my_parts:Opponent"
    assert result.counts["failed"] == 0
