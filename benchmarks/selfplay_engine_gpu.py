"""Tokens per second on a GPU: our continuous batches and `generate` of transformers.

A random model in the shape of Qwen3-1.7B, bfloat16. "N even" are N requests at once with prompts of
200 to 800 tokens and answers of 128; "games" are 256 games of three turns with the same prompts and
answers of 16 to 256 tokens; a batch of `generate` has all of them and takes as long as its
longest answer. Only wanted tokens are counted. Ours records its steps anew whenever it had nothing
to do, so that is in its times.

python benchmarks/selfplay_engine_gpu.py [--write]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import described, machine, table, write
from selfplay_engine import Request, rate, save_adapters, with_engine, with_generate
from transformers import Qwen3Config, Qwen3ForCausalLM

from unstable.engines.transformers_engine import TransformersEngine


def model(layers: int) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096,
        tie_word_embeddings=True, eos_token_id=None, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    with torch.device("cuda"):
        return Qwen3ForCausalLM(config).eval().to(torch.bfloat16)


def requests(games: int, turns: int, shortest: int, longest: int) -> list[list[Request]]:
    rng = random.Random(0)
    return [
        [
            (
                tuple(rng.randrange(150_000) for _ in range(rng.randint(200, 800))),
                rng.randint(shortest, longest),
            )
            for _ in range(turns)
        ]
        for _ in range(games)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    parser.add_argument("--layers", type=int, default=28, help="fewer: only to try the script")
    arguments = parser.parse_args()
    start = machine() | {"versions": {name: version(name) for name in ("torch", "transformers")}}
    start["cpu"] = f"{torch.cuda.get_device_name()}; {start['cpu']}"
    network = model(arguments.layers)
    loads = {f"{n} even": requests(n, 1, 128, 128) for n in (32, 128, 512)}
    loads["games"] = requests(256, 3, 16, 256)
    found: dict[str, dict[str, float]] = {}

    def measure(way: str, run: Callable[[list[list[Request]]], None], repeats: int) -> None:
        found[way] = {}
        for load, games in loads.items():
            speed = rate(lambda games=games: run(games), games, repeats, time.perf_counter)  # type: ignore[misc]
            found[way][load] = speed
            print(f"{way}, {load}: {speed:,.0f}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        adapters = save_adapters(network, Path(folder))
        measure("generate, all in one batch", lambda games: with_generate(network, games, 512), 1)
        engine = TransformersEngine(network, device="cuda", max_parallel_seq=512)
        measure("ours", lambda games: with_engine(engine, games, [None]), 2)
        measure(
            "ours, two LoRA adapters of rank 16 at once",
            lambda games: with_engine(engine, games, adapters), 2,
        )  # fmt: skip
    base = found["generate, all in one batch"]
    rows = [
        [way, *(f"{rates[load]:,.0f} ({rates[load] / base[load]:.1f} x)" for load in loads)]
        for way, rates in found.items()
    ]
    text = "\n".join([
        "# Generating on a GPU", "", *described(start, machine()), "",
        (__doc__ or "").split("\n\n")[1].replace("\n", " "), "",
        table(["tokens per second", *loads], rows), "",
    ])  # fmt: skip
    print(text)
    if arguments.write:
        write("selfplay_engine_gpu", text, {"machine": start, "results": found})


if __name__ == "__main__":
    main()
