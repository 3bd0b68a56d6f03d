"""Tokens per second on a GPU: our continuous batches, beside what the GPU allows.

A random model in the shape of Qwen3-1.7B, bfloat16. "N even" are N requests at once with prompts of
200 to 800 tokens and answers of 128; "games" are 256 games of three turns with the same prompts and
answers of 16 to 256 tokens. Only tokens of answers are counted; the time to read the prompts is in
it. The best of three runs.

The limit is the time to read weights, keys and values of every step at the bandwidth of a copy, and
to read prompts at the rate of a large product, both measured here; nothing else is counted.
"Decoding alone" is the difference between answers of 128 tokens and of one, against the bandwidth.

The divergence is that of the distributions that tokens were drawn from and those of the learner's
forward pass over the same tokens: the mean of r - 1 - log r, where r is the ratio of the two
probabilities of a token, over 8,192 of them. Beside it that of each from a pass in float32, which
is what bfloat16 costs, and the same with logits four times as large, which makes it 16 times that.

python benchmarks/selfplay_engine_gpu.py [--write] [--usual]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import described, machine, table, write
from selfplay_engine import Request, rate, save_adapters, with_generate
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from unstable.algorithms.forward import (
    compute_hidden_states,
    pack,
    token_logprobs,
    trunk_and_head,
    use_packed_attention,
)
from unstable.engines import Completion, Sampling
from unstable.engines.transformers_engine import TransformersEngine
from unstable.learners.fused import fuse

GOALS = {"32 even": 8_000, "128 even": 19_000, "512 even": 30_000, "games": 15_000}
EVEN = (32, 128, 512)
LEARNER_ROWS = 64


def model(layers: int) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096,
        tie_word_embeddings=True, eos_token_id=None, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    with torch.device("cuda"):
        network = Qwen3ForCausalLM(config).eval().to(torch.bfloat16)
    network.tie_weights()
    return network


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


def serve(
    engine: TransformersEngine,
    games: list[list[Request]],
    adapters: Sequence[str | None],
    sampling: Sampling,
) -> list[Completion]:
    """Play the games; the last answer of each."""

    async def game(number: int) -> Completion:
        for turn, (prompt, length) in enumerate(games[number]):
            how = replace(sampling, max_tokens=length, seed=number * 100 + turn)
            answer = await engine.generate(prompt, how, adapters[number % len(adapters)])
        return answer

    async def everybody() -> list[Completion]:
        return await asyncio.gather(*map(game, range(len(games))))

    return asyncio.run(everybody())


# --- what the GPU allows ------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """Bytes per second of a copy, read and written, and operations per second of a product."""

    bandwidth: float
    operations: float
    weights: int
    """Of all layers, each used once per token."""
    head: int
    kv_bytes: int
    """Of a token."""

    def decoding(self, games: list[list[Request]]) -> float:
        """Seconds; with all games in every step."""
        tokens = sum(length - 1 for game in games for _, length in game)
        steps = tokens / len(games)
        seen = sum(
            (length - 1) * len(prompt) + length * (length - 1) // 2
            for game in games
            for prompt, length in game
        )
        bytes_read = steps * 2 * (self.weights + self.head) + seen * self.kv_bytes
        return bytes_read / self.bandwidth

    def reading(self, games: list[list[Request]]) -> float:
        prompts = [len(prompt) for game in games for prompt, _ in game]
        return 2 * (sum(prompts) * self.weights + len(prompts) * self.head) / self.operations


def measured(network: Any) -> Limits:
    config = network.config
    layers = sum(p.numel() for p in network.model.layers.parameters())
    return Limits(
        _bandwidth(),
        _operations(),
        layers,
        network.lm_head.weight.numel(),
        config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 2,
    )


def _timed(run: Callable[[], object], repeats: int) -> float:
    for _ in range(3):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()  # type: ignore[no-untyped-call]
    for _ in range(repeats):
        run()
    end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / repeats


def _bandwidth() -> float:
    source = torch.randint(0, 2**30, (2**29,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _timed(lambda: target.copy_(source), 10)


def _operations() -> float:
    size = 8192
    left, right = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / _timed(lambda: left @ right, 20)


# --- the learner's own numbers ------------------------------------------------------------------


def learner_logprobs(
    network: Any, adapter: str | None, answers: Sequence[Completion], dtype: torch.dtype
) -> Tensor:
    """Of the tokens of the answers, by the learner's forward pass."""
    learner: Any = deepcopy(network).requires_grad_(False).to(dtype)
    use_packed_attention(learner)
    if adapter is not None:
        from peft import PeftModel

        learner = PeftModel.from_pretrained(learner, adapter)
    fuse(learner)
    trunk, head = trunk_and_head(learner)
    parts = []
    with torch.no_grad(), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        for start in range(0, len(answers), 16):
            some = answers[start : start + 16]
            row = pack([(*a.prompt_ids, *a.token_ids) for a in some], "cuda")
            places = [
                begin + len(a.prompt_ids) - 1 + number
                for begin, a in zip(row.starts, some, strict=True)
                for number in range(len(a.token_ids))
            ]
            states = compute_hidden_states(trunk, row)[torch.tensor(places, device="cuda")]
            targets = torch.tensor([token for a in some for token in a.token_ids], device="cuda")
            parts.append(token_logprobs(states, head, targets)[0].double())
    return torch.cat(parts)


def divergences(
    network: Any, adapter: str | None, answers: Sequence[Completion]
) -> dict[str, float]:
    drawn = torch.tensor([x for a in answers for x in a.logprobs], device="cuda").double()
    learner, exact = (
        learner_logprobs(network, adapter, answers, dtype)
        for dtype in (torch.bfloat16, torch.float32)
    )

    def between(one: Tensor, other: Tensor) -> float:
        return float(((other - one).exp() - 1 - (other - one)).mean())

    return {
        "engine and learner": between(drawn, learner),
        "engine and float32": between(drawn, exact),
        "learner and float32": between(learner, exact),
    }


def decoding_alone(
    games: list[list[Request]], rate_of_all: float, reading: float, limits: Limits
) -> dict[str, float]:
    """Of the rate for answers of 128 tokens, and the seconds for answers of one."""
    step = (128 * len(games) / rate_of_all - reading) / 127
    return {
        "tokens per second": len(games) / step,
        "milliseconds a step": 1e3 * step,
        "share of the bandwidth": limits.decoding(games) / (127 * step),
        "seconds to read prompts": reading,
        "share of the products": limits.reading(games) / reading,
    }


# --- the table ----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    parser.add_argument("--usual", action="store_true", help="`generate` of transformers, too")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=28, help="fewer: only to try the script")
    arguments = parser.parse_args()
    start = machine() | {"versions": {name: version(name) for name in ("torch", "transformers")}}
    start["cpu"] = f"{torch.cuda.get_device_name()}; {start['cpu']}"
    network = model(arguments.layers)
    limits = measured(network)
    loads = {f"{n} even": requests(n, 1, 128, 128) for n in EVEN}
    loads["games"] = requests(256, 3, 16, 256)
    rates: dict[str, dict[str, float]] = {}

    def measure(way: str, run: Callable[[list[list[Request]]], object], repeats: int) -> None:
        rates[way] = {}
        for load, games in loads.items():
            speed = rate(lambda games=games: run(games), games, repeats, time.perf_counter)  # type: ignore[misc]
            rates[way][load] = speed
            print(f"{way}, {load}: {speed:,.0f}", flush=True)

    plain = Sampling(1.0, 1.0)
    if arguments.usual:
        measure("generate, all in one batch", lambda games: with_generate(network, games, 512), 1)
    alone: dict[str, dict[str, float]] = {}
    apart: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        adapters = save_adapters(network, Path(folder))
        served = deepcopy(network)
        engine = TransformersEngine(served, device="cuda", max_parallel_seq=512)
        measure("ours", lambda games: serve(engine, games, [None], plain), arguments.repeats)
        measure(
            "ours, temperature 0.7 and top_p 0.95",
            lambda games: serve(engine, games, [None], Sampling(0.7, 0.95)), arguments.repeats,
        )  # fmt: skip
        measure(
            "ours, two LoRA adapters of rank 16 at once",
            lambda games: serve(engine, games, adapters, plain), arguments.repeats,
        )  # fmt: skip
        for load in list(loads)[: len(EVEN)]:
            games = loads[load]
            first = [[(prompt, 1)] for ((prompt, _),) in games]
            reading = len(games) / rate(
                lambda first=first: serve(engine, first, [None], plain),  # type: ignore[misc]
                first, arguments.repeats, time.perf_counter,
            )  # fmt: skip
            alone[load] = decoding_alone(games, rates["ours"][load], reading, limits)
        few = loads["128 even"][:LEARNER_ROWS]
        for scale in (1, 4):
            for one in (network, served):
                one.model.norm.weight.data.fill_(scale)
            for way, adapter in (("no adapter", None), ("an adapter", adapters[0])):
                answers = serve(engine, few, [adapter], plain)
                name = way if scale == 1 else f"{way}, logits times {scale}"
                apart[name] = divergences(network, adapter, answers)
    allowed = {
        load: sum(length for game in games for _, length in game)
        / (limits.decoding(games) + limits.reading(games))
        for load, games in loads.items()
    }
    rows = [
        [way, *(f"{ours[load]:,.0f} ({ours[load] / allowed[load]:.0%})" for load in loads)]
        for way, ours in rates.items()
    ]
    rows.append(["the limit", *(f"{allowed[load]:,.0f}" for load in loads)])
    rows.append(["the goal", *(f"{GOALS[load]:,}" for load in loads)])
    kinds = {
        "tokens per second": ",.0f", "milliseconds a step": ".2f", "share of the bandwidth": ".0%",
        "seconds to read prompts": ".3f", "share of the products": ".0%",
    }  # fmt: skip
    speeds = (
        f"- a copy moves {limits.bandwidth / 1e12:.2f} TB/s, a product does"
        f" {limits.operations / 1e12:.0f} TFLOP/s"
    )
    text = "\n".join([
        "# Generating on a GPU", "", *described(start, machine()),
        speeds, "",
        *(part.replace("\n", " ") + "\n" for part in (__doc__ or "").split("\n\n")[1:-1]),
        table(["tokens per second (share of the limit)", *loads], rows), "",
        table(
            ["decoding alone", *alone],
            [[kind, *(format(one[kind], how) for one in alone.values())]
             for kind, how in kinds.items()],
        ), "",
        table(
            ["divergence", *next(iter(apart.values()))],
            [[way, *(f"{value:.1e}" for value in one.values())] for way, one in apart.items()],
        ), "",
    ])  # fmt: skip
    print(text)
    if arguments.write:
        write("selfplay_engine_gpu", text)


if __name__ == "__main__":
    main()
