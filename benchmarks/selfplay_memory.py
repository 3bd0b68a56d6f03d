"""Which settings of the learner fit into which GPU: the tables of the configuration reference.

A random model of each shape, bfloat16, LoRA of rank 32 on all linears, one sequence half of which
is trained. The process may take no more memory than a smaller GPU has, less 0.75 GiB for the
driver. The settings are those that the learner chooses by itself ("auto") under that cap; it then
trains a sequence of as many tokens as it says would fit, 32,768 at most. If that runs out of
memory, a tenth less is tried, and so on. The last column is what the memory of two short sequences
says about other settings: tokens that should fit.

python benchmarks/selfplay_memory.py [--seconds 150] [--tiny] [--write]
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

import torch
from common import described, machine, table, write
from selfplay_learner import SHAPES, Case, Ours, byte_tokenizer, shaped, some_steps

from unstable.learners.policy import sharing_weights

NAME = "selfplay_memory"
MODELS = ("Qwen3 1.7B", "Llama 3.2 1B", "Llama 3.2 3B", "Qwen3 4B", "Qwen3 8B")
CARDS = (12, 16, 24, 32, 40, 48, 80)
DRIVER_GIB = 0.75
GIB = 2**30
WAYS = {
    "none": (False, False), "activation": (True, False), "gradient": (False, True),
    "both": (True, True),
}  # fmt: skip
SHORT = (2048, 4096)
LONGEST = 32_768
"""Sequences longer than this are not asked for."""
SHORTEST = 256
HEADER = [
    "VRAM", "Activation Checkpointing", "Gradient Checkpointing", "Train Length Truncation",
    "trained at once", "tokens/s", "should fit",
]  # fmt: skip


class Trial:
    """A learner over weights that are there already."""

    def __init__(self, model: Any, device: str, **options: Any) -> None:
        case = Case("", 0, 0, 0, 1, (0, 0), (0, 0), rank=32)
        self.device = device
        base = (sharing_weights(model), byte_tokenizer())
        self.ours = Ours("", case, device, base=base, memory_share=0.95, **options)

    def trained(self, tokens: int) -> tuple[float, float] | None:
        """The same for a sequence that may be too long; None: it is."""
        try:
            self.peak(min(tokens, SHORTEST))
            return self.peak(tokens)
        except torch.OutOfMemoryError:
            self.ours.learner.optimizer.zero_grad(set_to_none=True)
        clean(self.device)
        return None

    def peak(self, tokens: int) -> tuple[float, float]:
        """Bytes at the most and seconds of an update with one sequence."""
        steps = some_steps(tokens, tokens, tokens)
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        self.ours.update(steps)
        if self.device != "cuda":
            return 1e6 * tokens, time.perf_counter() - begin
        torch.cuda.synchronize()
        return torch.cuda.max_memory_reserved(), time.perf_counter() - begin


def cap(gib: float | None, device: str) -> None:
    """Let the process have so much memory; None: all of it."""
    if device != "cuda":
        return
    clean(device)
    total = torch.cuda.get_device_properties(0).total_memory
    share = 1.0 if gib is None else gib * GIB / total
    torch.cuda.set_per_process_memory_fraction(share)
    if not hasattr(torch.cuda, "get_per_process_memory_fraction"):  # an older torch does not say
        FRACTION["share"] = share
        patch("unstable.learners.policy.free_memory", free_under_cap).start()


FRACTION = {"share": 1.0}


def free_under_cap(device: torch.device) -> int:
    total = torch.cuda.get_device_properties(device).total_memory
    return int(FRACTION["share"] * total) - torch.cuda.memory_allocated(device)


def clean(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def slopes(model: Any, device: str, short: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Of each setting, bytes that are always there and bytes of a token."""
    found = {}
    for way, (activation, gradient) in WAYS.items():
        trial = Trial(
            model, device, activation_checkpointing=activation, gradient_checkpointing=gradient,
            max_train_len=None, pack_tokens=LONGEST,
        )  # fmt: skip
        trial.peak(short[0])  # kernels are made, and the optimiser's state
        few, more = (trial.peak(tokens)[0] for tokens in short)
        each = (more - few) / (short[1] - short[0])
        found[way] = (few - each * short[0], each)
        del trial
        clean(device)
    return found


def automatic(model: Any, device: str) -> dict[str, Any]:
    """What the learner chooses, and the longest sequence that it trains with that."""
    trial = None
    try:
        trial = Trial(
            model, device, activation_checkpointing="auto", gradient_checkpointing="auto",
            max_train_len="auto",
        )  # fmt: skip
        settings = trial.ours.learner.settings
        tokens = min(settings.max_train_len or LONGEST, LONGEST if device == "cuda" else 256)
        chosen: dict[str, Any] = {
            "activation": settings.activation_checkpointing,
            "gradient": settings.gradient_checkpointing, "pack_tokens": settings.pack_tokens,
            "max_train_len": settings.max_train_len, "words": str(settings), "tried": tokens,
        }  # fmt: skip
        while tokens >= SHORTEST:
            trained = trial.trained(tokens)
            if trained is not None:
                peak, seconds = trained
                return chosen | {
                    "tokens": tokens, "peak_gib": peak / GIB, "tokens_per_s": tokens / seconds,
                }  # fmt: skip
            tokens = int(0.9 * tokens)
        return chosen | {"error": f"not even {SHORTEST} tokens"}
    except torch.OutOfMemoryError:
        return {"error": "no room for the learner"}
    finally:
        del trial
        clean(device)


def measure(name: str, device: str, *, tiny: bool, end: float) -> dict[str, Any]:
    cap(None, device)
    model = shaped(name, device, tiny=tiny)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    costs = slopes(model, device, (16, 32) if tiny else SHORT)
    print(name, {way: f"{base / GIB:.1f} GiB + {each / 1e6:.2f} MB"
                 for way, (base, each) in costs.items()}, flush=True)  # fmt: skip
    found: dict[str, Any] = {
        "weights_gib": weights / GIB,
        "bytes": {way: {"always": base, "token": each} for way, (base, each) in costs.items()},
        "cards": {},
    }
    for card in CARDS:
        if time.monotonic() > end:
            print(f"{name}, {card} GB: no time left", flush=True)
            continue
        limit = card - DRIVER_GIB
        row: dict[str, Any] = {
            "estimate": {
                way: int((limit * GIB - base) / each) if device == "cuda" else 300
                for way, (base, each) in costs.items()
            }
        }
        if limit * GIB > weights:
            cap(limit, device)
            row["auto"] = automatic(model, device)
        found["cards"][card] = row
        print(name, card, json.dumps(row), flush=True)
    cap(None, device)
    return found


def report(found: dict[str, Any]) -> str:
    lines: list[str] = []
    for name, one in found.items():
        rows = []
        for card, row in one["cards"].items():
            auto = row.get("auto", {"error": "the weights alone are larger"})
            if "error" in auto:
                rows.append([f"{card} GB", "", "", auto["error"], "", "", ""])
                continue
            on = {True: "on", False: "off"}
            cut = auto["max_train_len"]
            rows.append([
                f"{card} GB", on[auto["activation"]], on[auto["gradient"]],
                "none" if cut is None else f"{cut:,}",
                f"{auto['tokens']:,}", f"{auto['tokens_per_s']:,.0f}",
                ", ".join(f"{way} {max(0, n):,}" for way, n in row["estimate"].items()),
            ])  # fmt: skip
        each = ", ".join(
            f"{way} {cost['token'] / 1e6:.2f} MB" for way, cost in one["bytes"].items()
        )
        lines += [
            f"### {name}", "",
            f"Weights {one['weights_gib']:.1f} GiB. A token, by checkpointing: {each}.", "",
            table(HEADER, rows), "",
        ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing more then")
    parser.add_argument("--tiny", action="store_true", help="try it on a CPU")
    parser.add_argument("--write", action="store_true", help="keep the tables in results/")
    arguments = parser.parse_args()
    device = "cpu" if arguments.tiny else "cuda"
    names = ("torch", "transformers", "peft")
    start = machine() | {"versions": {name: version(name) for name in names}}
    if device == "cuda":
        start["cpu"] = f"{torch.cuda.get_device_name()}; {start['cpu']}"
    end = time.monotonic() + arguments.seconds
    found: dict[str, Any] = {}
    text = ""
    for name in arguments.models.split(","):
        if time.monotonic() > end:
            break
        found[name] = measure(name, device, tiny=arguments.tiny, end=end)
        clean(device)
        text = "\n".join([
            "# The learner and the memory of a GPU", "", *described(start, machine()), "",
            *(part.replace("\n", " ") + "\n" for part in (__doc__ or "").split("\n\n")[1:-1]),
            report(found),
        ])  # fmt: skip
        if arguments.write:
            write(NAME, text, {"machine": start, "results": found})
    print(text)


if __name__ == "__main__":
    main()
