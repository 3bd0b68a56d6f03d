"""The whole loop on one GPU: games of SimpleTak, 384 steps an update, nothing left out.

A random model in the shape of Qwen3-1.7B, bfloat16, and an adapter of rank 32 on all linears, with
`mode = "overlap"`: engine and learner have the base weights once, adapters are handed over in
memory, and games go on while the learner updates. Steps that are more than eight updates old are
dropped. Every update writes a checkpoint, and after a minute a state to continue from.

What the model says is noise, so its move is drawn from the text, and it stops at one token in 400:
answers are of random lengths, 400 tokens on average and 1,024 at most, as those of a model that
reasons. Prompts are those of the game with the tokenizer that is named.

A step is the time from the end of one update to that of the next, the first two left out. 200 steps
are extrapolated from those that were measured.

python benchmarks/selfplay_gpu.py [--seconds 200] [--tokenizer FOLDER] [--tiny] [--write]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import torch
from common import described, machine, table, write
from selfplay_learner import byte_tokenizer

from unstable.buffer import BatchSource
from unstable.config import RunConfig, make_config
from unstable.core import Step
from unstable.learners.standard_learner import StandardLearner
from unstable.run import RunFolder
from unstable.run import start as runs
from unstable.run.progress import Progress
from unstable.run.start import start

NAME = "selfplay_gpu"
GOAL_HOURS = 2.0
STEPS = 200
WARM_UP = 2
CELLS = 16
MEMORY = ("weights_gib", "allocated_at_start_gib", "peak_gib")


def a_cell(text: str) -> str:
    """A move of SimpleTak, whatever the model wrote: the game's `action_extraction`."""
    return f"[{zlib.crc32(text.encode()) % CELLS}]"


def config_of(arguments: argparse.Namespace, folder: str) -> RunConfig:
    tiny = arguments.tiny
    return make_config({
        "name": "one-gpu", "model": folder, "mode": "overlap", "updates": 10**6,
        "batch_size": 16 if tiny else 384, "workers": 8 if tiny else arguments.workers,
        "eval_workers": 0, "eval_games": 0,
        "import_path": [str(Path(__file__).parent)],
        "games": {
            "train": [["SimpleTak-v0-train", 2, "qwen3-zs"]],
            "action_extraction": "selfplay_gpu:a_cell",
        },
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 24 if tiny else 1024},
        "engine": {"max_parallel_seq": arguments.workers, "max_model_len": 4096, "max_loras": 8},
        "buffer": {
            "max_size": 256 if tiny else 1536,
            "final": [{"type": "RoleAdvantageByEnvFormatter"}],
            "sampling": [{"type": "NormalizeRewardsByEnv", "z_score": True}],
        },
        "lora": {"lora_rank": 32},
        "learner": {"options": {"max_staleness": 8, "batch_delay_buffer": 1.0}},
    })  # fmt: skip


def random_model(tokenizer: Any, device: torch.device, dtype: torch.dtype, tiny: bool) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128,
    }  # fmt: skip
    if tiny:
        sizes |= {
            "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16,
        }  # fmt: skip
    torch.manual_seed(0)
    config = Qwen3Config(
        **sizes, max_position_embeddings=8192, tie_word_embeddings=True, eos_token_id=0,
        pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    with torch.device(device):
        model = Qwen3ForCausalLM(config).eval().to(dtype)
    model.tie_weights()
    words = range(sizes["vocab_size"])
    stops = random.Random(0).sample(words, max(1, len(words) // 400))
    model.generation_config.eos_token_id = stops
    return model


class TimeIsUp(Exception):
    """As long as was asked."""


class Clock:
    """Who did what when, in seconds since it began."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.spans: list[tuple[str, float, float]] = []
        self.ages: Counter[int] = Counter()
        self.trained: list[tuple[float, int, int]] = []
        """When, how many steps, how many tokens."""
        self.engine: list[tuple[float, float, float]] = []
        """When, requests under way, tokens so far."""

    def now(self) -> float:
        return time.perf_counter() - self.begin

    def timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = self.now()
            try:
                return method(*args, **kwargs)
            finally:
                self.spans.append((name, start, self.now()))

        return wrapper

    def learning(self, method: Callable[..., Any]) -> Callable[..., Any]:
        inner = self.timed("learning", method)

        @wraps(method)
        def wrapper(learner: Any, steps: list[Step]) -> Any:
            self.ages.update(learner._step - max(step.version, 0) for step in steps)  # noqa: SLF001
            info = inner(learner, steps)
            tokens = sum(len(step.prompt_ids) + len(step.completion_ids) for step in steps)
            self.trained.append((self.now(), len(steps), tokens))
            print(
                f"update {len(self.trained)} at {self.now():.1f} s: {len(steps)} steps,"
                f" {tokens:,} tokens", flush=True,
            )  # fmt: skip
            return info

        return wrapper

    def watch(self, engine: Any, end: threading.Event) -> None:
        while not end.wait(0.1):
            stats = engine.stats()
            self.engine.append((self.now(), stats["running"], stats["tokens"]))

    def within(self, name: str, start: float, end: float) -> float:
        return sum(
            max(0.0, min(to, end) - max(at, start)) for kind, at, to in self.spans if kind == name
        )


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    clock, ended = Clock(), threading.Event()
    made: dict[str, Any] = {}
    tokenizer = byte_tokenizer()
    if arguments.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)

    def load(_: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
        model = random_model(tokenizer, device, dtype, arguments.tiny)
        made["weights"] = sum(p.numel() * p.element_size() for p in model.parameters())
        return model, tokenizer

    make = runs.make_sharing_parts

    def making(*args: Any) -> Any:
        parts, actor = make(*args)
        made["parts"] = parts
        if torch.cuda.is_available():
            made["allocated"] = torch.cuda.memory_allocated()
        threading.Thread(target=clock.watch, args=(actor.engine, ended), daemon=True).start()
        print(f"everything is made after {clock.now():.1f} s", flush=True)
        return parts, actor

    def report(progress: Progress) -> None:
        del progress
        if clock.now() > arguments.seconds:
            made["collected"] = dict(made["parts"].collector.counts)
            made["buffer"] = made["parts"].buffer.stats()
            raise TimeIsUp

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        config = config_of(arguments, folder)
        run = RunFolder(Path(folder) / "run")
        run.path.mkdir()
        run.write_config(config)
        with (
            patch.object(runs, "load_base", load),
            patch.object(runs, "make_sharing_parts", making),
            patch.object(BatchSource, "wait", clock.timed("waiting", BatchSource.wait)),
            patch.object(StandardLearner, "_learn", clock.learning(StandardLearner._learn)),  # noqa: SLF001
            patch.object(
                StandardLearner, "save_checkpoint",
                clock.timed("checkpoint", StandardLearner.save_checkpoint),
            ),
            patch.object(
                StandardLearner, "save_state", clock.timed("state", StandardLearner.save_state)
            ),
        ):  # fmt: skip
            try:
                start(config, run, folder, report)
            except TimeIsUp:
                pass
            finally:
                ended.set()
    return summary(clock, made)


def summary(clock: Clock, made: dict[str, Any]) -> dict[str, Any]:
    ends = [at for at, *_ in clock.trained]
    if len(ends) < WARM_UP + 2:
        raise SystemExit(f"only {len(ends)} updates: measure for longer")
    first, last = ends[WARM_UP - 1], ends[-1]
    span = last - first
    learning = clock.within("learning", first, last) - clock.within("checkpoint", first, last)
    looks = [one for one in clock.engine if first <= one[0] <= last]
    counted = clock.trained[WARM_UP:]
    return {
        "updates": len(counted),
        "measured_s": span,
        "step_s": [b - a for a, b in zip(ends[WARM_UP - 1 :], ends[WARM_UP:], strict=False)],
        "steps_per_update": fmean(steps for _, steps, _ in counted),
        "tokens_per_update": fmean(tokens for *_, tokens in counted),
        "learning": learning / span,
        "waiting": clock.within("waiting", first, last) / span,
        "saving": sum(clock.within(name, first, last) for name in ("checkpoint", "state")) / span,
        "generating": sum(running > 0 for _, running, _ in looks) / max(1, len(looks)),
        "running": fmean(running for _, running, _ in looks),
        "generated_per_s": (looks[-1][2] - looks[0][2]) / (looks[-1][0] - looks[0][0]),
        "ages": dict(sorted(clock.ages.items())),
        "collected": made.get("collected"),
        "buffer": made.get("buffer"),
        "weights_gib": made["weights"] / 2**30,
        "allocated_at_start_gib": made.get("allocated", 0) / 2**30,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0,
    }


def report_of(found: dict[str, Any], start: dict[str, Any], tokenizer: str) -> str:
    hours = fmean(found["step_s"]) * STEPS / 3600
    ages = ", ".join(f"{age}: {count:,}" for age, count in found["ages"].items())
    rows = [
        ["seconds a step, mean (median, longest)",
         "**{:.1f}** ({:.1f}, {:.1f})".format(*(f(found["step_s"]) for f in (fmean, median, max)))],
        ["steps and tokens of an update",
         f"{found['steps_per_update']:.0f}, {found['tokens_per_update']:,.0f}"],
        ["the learner updates, waits for games, saves",
         f"{found['learning']:.0%}, {found['waiting']:.0%}, {found['saving']:.0%}"],
        ["time in which the engine generates", f"{found['generating']:.0%}"],
        ["tokens generated a second, requests at once",
         f"{found['generated_per_s']:,.0f}, {found['running']:.0f}"],
        ["base weights; all that is held at the start; the most",
         ", ".join(f"{found[name]:.1f}" for name in MEMORY) + " GiB"],
        ["updates since a trained step was sampled: steps", ages],
        ["steps evicted from the buffer, of those collected",
         f"{found['buffer'].get('evicted', 0):,}" if found["buffer"] else "?"],
        ["200 steps, extrapolated", f"**{hours:.2f} h** (goal: under {GOAL_HOURS:g} h)"],
    ]  # fmt: skip
    measured = (
        f"Measured over {found['updates']} updates in {found['measured_s']:.0f} s; prompts with"
        f" {tokenizer}."
    )
    return "\n".join([
        "# The whole loop on one GPU", "", *described(start, machine()), "",
        *(part.replace("\n", " ") + "\n" for part in (__doc__ or "").split("\n\n")[1:-1]),
        measured, "",
        table(["", ""], rows), "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=256, help="games at once")
    parser.add_argument("--tokenizer", help="folder of a tokenizer; else a letter is a token")
    parser.add_argument("--folder", help="where the run is written to")
    parser.add_argument("--tiny", action="store_true", help="try it on a CPU")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    names = ("torch", "transformers", "peft", "textarena")
    start_machine = machine() | {"versions": {name: version(name) for name in names}}
    if torch.cuda.is_available():
        start_machine["cpu"] = f"{torch.cuda.get_device_name()}; {start_machine['cpu']}"
    found = measure(arguments)
    kind = "the tokenizer of SmolLM2" if arguments.tokenizer else "a token a letter"
    text = report_of(found, start_machine, kind)
    print(text)
    print(json.dumps(found), file=sys.stderr)
    if arguments.write:
        write(NAME, text)


if __name__ == "__main__":
    main()
