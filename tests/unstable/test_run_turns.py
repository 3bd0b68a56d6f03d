"""A run by turns: begun, killed, interrupted, continued."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from learner_parts import make_model

from unstable.cli import main
from unstable.tiny import WarmUp, make_tiny

CONFIG = """
name = "small"
model = "{model}"
updates = 3
games_per_update = 6
workers = 1
eval_every = 2
eval_games = 4
[games]
train = [["TicTacToe-v0-train", 2, "bare"]]
compact_views = true
action_extraction = "bare"
random_opening_moves = 2
[sampling]
temperature = 1.0
top_p = 1.0
max_tokens = 6
[engine]
max_model_len = 64
[pool]
sample_mode = {{mirror = 0.5, lagged = 0.5}}
[[buffer.final]]
type = "RoleAdvantageByOpponentFormatter"
[[buffer.step]]
type = "BlameInvalidMove"
[[buffer.sampling]]
type = "NormalizeRewards"
[lora]
lora_rank = 4
lora_dropout = 0.1
[learner]
algorithm = "PPO"
learning_rate = 0.002
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Warm enough to play some legal moves: a game of one move would prove little."""
    folder = tmp_path_factory.mktemp("models") / "small"
    return str(make_tiny(folder, warm_up=WarmUp(games=20, steps=10)))


@pytest.fixture
def config(tmp_path: Path, model: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(model=model))
    return path


def unstable(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "unstable.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def run_of(output_dir: Path) -> Path:
    (found,) = output_dir.glob("*/*/small")
    return found


def wait_for(path: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not list(path.glob(pattern)):
        assert process.poll() is None, ended(process)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines(path: Path, *drop: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in drop} for record in records]


def learned(run: Path) -> list[dict[str, Any]]:
    metrics = lines(run / "metrics.jsonl", "time")
    return [
        {k: v for k, v in m.items() if k.startswith("learner/")}
        for m in metrics
        if "learner/step" in m
    ]


@pytest.mark.slow
@pytest.mark.process
def test_a_run_killed_at_any_update_continues_bit_for_bit(config: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    straight = unstable("train", config, "--output-dir", whole, "--json")
    code, out, err = ended(straight)
    assert code == 0, err
    result = json.loads(out)
    assert result["step"] == 3
    assert [e["ckpt_uid"] for e in result["evaluations"]] == ["ckpt--1", "ckpt-2", "ckpt-3"]

    process = unstable("train", config, "--output-dir", killed)
    for state in ("step-0", "step-1"):
        wait_for(killed, f"*/*/small/states/{state}", process)
        process.kill()
        process.communicate()
        process = unstable("resume", run_of(killed), "--json")
    code, out, err = ended(process)
    assert code == 0, err
    assert json.loads(out)["evaluations"] == result["evaluations"]

    one, other = run_of(whole), run_of(killed)
    for name in ("adapter_model.safetensors",):
        final = [run / "checkpoints" / "iteration-3" / name for run in (one, other)]
        assert final[0].read_bytes() == final[1].read_bytes()
    for part in ("buffer", "pool", "collector"):
        states = [(run / "states" / "step-3" / f"{part}.json").read_text() for run in (one, other)]
        assert states[0].replace(str(one), "") == states[1].replace(str(other), ""), part
    assert learned(one) == learned(other)
    games = [lines(run / "eval_data" / "games.jsonl", "time") for run in (one, other)]
    assert games[0] == games[1]
    for kind in ("train", "eval"):
        transcripts = [lines(run / "games" / f"{kind}.jsonl", "time") for run in (one, other)]
        assert transcripts[0] == transcripts[1]


@pytest.mark.process
def test_interrupted_run_prints_how_to_resume(config: Path, tmp_path: Path) -> None:
    # Long enough that it cannot end before it is interrupted.
    process = unstable("train", config, "--output-dir", tmp_path / "out", "--updates", 6)
    wait_for(tmp_path / "out", "*/*/small/states/step-1", process)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    run = run_of(tmp_path / "out")
    assert code == 130, err
    assert f"unstable resume {run}" in err
    assert "Traceback" not in err
    assert json.loads((run / "status.json").read_text())["status"] == "cancelled"

    code, out, err = ended(unstable("resume", run, "--updates", 7, "--json"))
    assert code == 0, err
    assert json.loads(out)["step"] == 7
    assert json.loads((run / "status.json").read_text())["status"] == "completed"


@pytest.mark.process
def test_run_is_locked_by_one_process(config: Path, tmp_path: Path) -> None:
    first = unstable("train", config, "--output-dir", tmp_path / "out", "--updates", 1000)
    try:
        wait_for(tmp_path / "out", "*/*/small/states/step-0", first)
        code, _, err = ended(unstable("resume", run_of(tmp_path / "out")))
        assert code == 2
        assert "being run by another process" in err
    finally:
        first.kill()
        first.communicate()


def test_a_folder_that_is_no_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["resume", str(tmp_path)])
    assert left.value.code == 2
    assert "no config.json" in capsys.readouterr().err


def test_games_for_one_and_for_many_are_measured_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_model(tmp_path / "reads-rules", max_position_embeddings=4096)
    games = ["--game", "GuessTheNumber-v0-train", "--game", "LiarsDice-v0-train"]
    for players, options in ((1, games[:2]), (3, [*games[2:], "--players", "3"])):
        with pytest.raises(SystemExit) as left:
            main(["eval", folder, *options, "--games", "3", "--max-tokens", "2", "--json"])
        assert left.value.code == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["players"], row["games"], row["failed"]) == (players, 3, 0)
        assert (row["reward"], row["invalid_rate"]) == (-1.0, 1.0)


@pytest.mark.parametrize("game", ["Chess-v0", "SpiteAndMalice-v0"])
def test_a_game_that_cannot_be_measured_is_one_line(
    model: str, capsys: pytest.CaptureFixture[str], game: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["eval", model, "--game", game])
    assert left.value.code == 2
    assert game in capsys.readouterr().err


def test_unwritable_disk_stops_the_run_with_reason(config: Path, tmp_path: Path) -> None:
    process = unstable("train", config, "--output-dir", tmp_path / "out")
    wait_for(tmp_path / "out", "*/*/small/states/step-0", process)
    states = run_of(tmp_path / "out") / "states"
    states.rename(states.with_name("moved"))
    states.write_text("in the way")
    code, _, err = ended(process)
    assert code == 1
    assert "states" in err
    assert "unstable resume" in err
