"""Models as a person's opponent: found on disk, asked as they need it."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from unstable.commands import CommandError, UsageError
from unstable.commands.play import AnswerOptions, Person, find_new_text, make_opponents
from unstable.config import ConfigError, make_config
from unstable.games import GameRunner
from unstable.models import ModelFolder, find_model
from unstable.run import RunFolder

OPTIONS = AnswerOptions(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """A run with two checkpoints of it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("runs") / "run"
    for iteration in (2, 10):
        torch.manual_seed(iteration)
        base = AutoModelForCausalLM.from_pretrained(tiny)
        lora = LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        checkpoint = folder / "checkpoints" / f"iteration-{iteration}"
        get_peft_model(base, lora).save_pretrained(checkpoint)
    return folder


def test_find_model_takes_the_newest_checkpoint(tiny, run):
    newest = run / "checkpoints" / "iteration-10"
    plain = ModelFolder(str(tiny), None, True, "bare", "bare")
    assert find_model(tiny) == plain
    assert find_model(run) == find_model(newest) == replace(plain, adapter=str(newest), step=10)


def test_find_model_reads_the_runs_prompt(run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    games = {"train": [["Nim-v0-train", 2, "qwen3-zs"]], "action_extraction": "raw"}
    RunFolder(tmp_path).write_config(make_config({"games": games}))
    found = find_model(tmp_path)
    assert (found.env_id, found.template, found.extraction) == ("Nim-v0-train", "qwen3-zs", "raw")
    assert not found.short_boards
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json"):
        find_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("adapter_config.json", "{}", "which model"),
        ("adapter_config.json", "{", "cannot be read"),
        ("checkpoints/notes.txt", "", "no checkpoint yet"),
    ],
)
def test_find_model_names_what_is_wrong(tmp_path, name, text, said):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        find_model(tmp_path)


def test_model_gets_short_board_person_gets_rules(run):
    with closing(make_opponents(find_model(run), "TicTacToe-v0", 2, 0, 1, OPTIONS)) as opponents:
        game = opponents.open_game()
        assert "Tic Tac Toe" in game.observe().observation
        game.step("[4]")
        reply = opponents.play_turn(game)
    assert reply.prompt.startswith("0123e5678")
    assert reply.completion is not None
    assert game.done  # it has learned nothing: its move is none, and that loses at once
    assert game.rewards == {0: 1.0, 1: -1.0}


def test_checkpoints_play_with_their_own_adapters(tiny, run):
    answers = set()
    for folder in (tiny, run / "checkpoints" / "iteration-2", run):
        with closing(
            make_opponents(find_model(folder), "TicTacToe-v0", 2, 1, 1, OPTIONS)
        ) as opponents:
            answers.add(opponents.play_turn(opponents.open_game()).completion.logprobs)
    assert len(answers) == 3


def test_unloadable_model_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 50000}')
    with pytest.raises(CommandError, match="cannot be loaded"):
        make_opponents(find_model(tmp_path), "TicTacToe-v0", 2, 0, 1, OPTIONS)


def test_byte_model_needs_a_short_board(tiny):
    with pytest.raises(UsageError, match="PigDice"):
        make_opponents(find_model(tiny), "PigDice-v0", 2, 0, 1, OPTIONS)


def test_three_can_play():
    with closing(make_opponents("random-legal", "LiarsDice-v0", 3, 1, 1, OPTIONS)) as opponents:
        game = opponents.open_game()
        moves = 0
        while game.observe().seat != 1:
            opponents.play_turn(game)
            moves += 1
        assert moves > 0
        assert {seat for seat, _ in game.actions} <= {0, 2}


def typing(*lines: str):
    """A person who types these, and everything that was said to them."""
    left, said = list(lines), []
    return Person(lambda: left.pop(0), said.append), said


def test_only_the_person_may_retry_a_move():
    game = GameRunner("TicTacToe-v0", 2, 0)
    person, said = typing("4", "9", "  ", "[0]")
    person.play_turn(game)
    game.step("[3]")
    person.play_turn(game)
    assert not game.done
    assert game.observe().seat == 0
    person.play_turn(game)
    assert "invalid" in said[2]
    assert "You are Player 0" not in said[1]
    assert game.observe().seat == 1
    game.step("[4]")
    assert game.done
    assert game.rewards == {0: 1.0, 1: -1.0}


def test_only_what_is_new_is_shown():
    assert find_new_text("", "a\nb") == "a\nb"
    assert find_new_text("a", "a\nb\n") == "b"
    assert find_new_text("x", "a\nb") == "a\nb"
    assert find_new_text("rules\n\none\n\n1|2\n3|4", "rules\n\none\ntwo\n\n1|X\n3|4") == (
        "one\ntwo\n\n1|X\n3|4"
    )
    assert find_new_text("rules\n\n1|2\n3|4", "rules\n\n1|2\n3|X") == "1|2\n3|X"


def test_escape_codes_of_a_model_do_not_reach_the_person(tmp_path: Path):
    game = GameRunner("TicTacToe-v0", 2, 0, view=lambda *_: "board \x1b[2J")
    person, said = typing("4")
    person.play_turn(game)
    assert "\x1b" not in said[0]
