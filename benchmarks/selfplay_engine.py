"""Tokens per CPU-second: our continuous batches and `generate` of transformers.

A random model of the embedded one's size, 256 games that ask at the same time. "Boards" are the
first seven turns of random games of TicTacToe as the embedded model sees them, with answers of 4
tokens; "moves" are prompts of 27 to 33 tokens, no two alike, with answers of 4; "reasons" have the
same prompts and answers of 4 to 64 tokens, where a batch of `generate` takes as long as its longest
answer. Only wanted tokens are counted.

python benchmarks/selfplay_engine.py [--write]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import described, machine, table, write
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from unstable.engines import Sampling
from unstable.engines.transformers_engine import TransformersEngine

GAMES, ROUNDS = 256, 2
Request = tuple[tuple[int, ...], int]


def model() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=260, hidden_size=128, intermediate_size=384, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        tie_word_embeddings=True, eos_token_id=None, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def requests(shortest: int, longest: int) -> list[list[Request]]:
    """Per game, per round."""
    rng = random.Random(0)
    return [
        [
            (
                tuple(rng.randrange(256) for _ in range(rng.randint(27, 33))),
                rng.randint(shortest, longest),
            )
            for _ in range(ROUNDS)
        ]
        for _ in range(GAMES)
    ]


def boards() -> list[list[Request]]:
    """Nine cells in rows, and a token of markup."""
    rng = random.Random(0)
    games = []
    for _ in range(GAMES):
        cells, order = ["."] * 9, rng.sample(range(9), 9)
        game = []
        for turn, cell in enumerate(order[:7]):
            seen = cells if turn % 2 == 0 else [{"M": "O", "O": "M"}.get(c, c) for c in cells]
            text = "/".join("".join(seen[row : row + 3]) for row in (0, 3, 6))
            game.append(((*text.encode(), 256), 4))
            cells[cell] = "MO"[turn % 2]
        games.append(game)
    return games


def with_generate(network: Any, games: list[list[Request]], batch: int) -> None:
    for number in range(len(games[0])):
        for start in range(0, len(games), batch):
            asked = [game[number] for game in games[start : start + batch]]
            width = max(len(prompt) for prompt, _ in asked)
            ids = [[0] * (width - len(prompt)) + list(prompt) for prompt, _ in asked]
            mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in asked]
            with torch.inference_mode():
                network.generate(
                    torch.tensor(ids).to(network.device), do_sample=True, top_k=0, pad_token_id=0,
                    attention_mask=torch.tensor(mask).to(network.device),
                    max_new_tokens=max(length for _, length in asked),
                )  # fmt: skip


def with_engine(
    engine: TransformersEngine, games: list[list[Request]], adapters: list[Any]
) -> None:
    async def game(number: int) -> None:
        for turn, (prompt, length) in enumerate(games[number]):
            sampling = Sampling(1.0, 1.0, length, seed=number * 100 + turn)
            await engine.generate(prompt, sampling, adapters[number % len(adapters)])

    async def everybody() -> None:
        await asyncio.gather(*map(game, range(len(games))))

    asyncio.run(everybody())


def save_adapters(network: Any, folder: Path) -> list[str]:
    places = [folder / str(number) for number in range(2)]
    for place in places:
        config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        adapted = get_peft_model(deepcopy(network), config)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
        adapted.save_pretrained(str(place))
    return [str(place) for place in places]


def rate(
    run: Callable[[], None], games: list[list[Request]], repeats: int,
    clock: Callable[[], float] = time.process_time,
) -> float:  # fmt: skip
    """The best of some repeats: what else runs on the machine only ever takes away."""
    tokens = sum(length for game in games for _, length in game)
    found = []
    for _ in range(repeats):
        start = clock()
        run()
        found.append(tokens / (clock() - start))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    start = machine() | {"versions": {name: version(name) for name in ("torch", "transformers")}}
    network = model()
    loads = {"boards": boards(), "moves": requests(4, 4), "reasons": requests(4, 64)}
    engine = TransformersEngine(deepcopy(network), device="cpu", max_parallel_seq=GAMES)
    with tempfile.TemporaryDirectory() as folder:
        adapters = save_adapters(network, Path(folder))
        ways: dict[str, Callable[[list[list[Request]]], None]] = {
            "generate, batches of 32": lambda games: with_generate(network, games, 32),
            "generate, one batch of 256": lambda games: with_generate(network, games, 256),
            "ours": lambda games: with_engine(engine, games, [None]),
            "ours, two LoRA adapters of rank 16 at once": lambda games: with_engine(
                engine, games, adapters
            ),
        }
        found = {
            way: {
                load: rate(lambda run=run, games=games: run(games), games, arguments.repeats)
                for load, games in loads.items()
            }
            for way, run in ways.items()
        }
    base = found["generate, batches of 32"]
    rows = [
        [way, *(f"{rates[load]:,.0f} ({rates[load] / base[load]:.1f} x)" for load in loads)]
        for way, rates in found.items()
    ]
    text = "\n".join([
        "# Generating on one CPU core", "", *described(start, machine()), "",
        (__doc__ or "").split("\n\n")[1].replace("\n", " "), "",
        table(["tokens per CPU-second", *loads], rows), "",
    ])  # fmt: skip
    print(text)
    if arguments.write:
        write("selfplay_engine", text)


if __name__ == "__main__":
    main()
