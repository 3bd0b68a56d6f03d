"""Which settings of the learner fit into which GPU: the tables of the configuration reference.

A random model of each shape, bfloat16, LoRA of rank 32 on all linears, one sequence half of which
is trained. The settings are those that the learner chooses by itself ("auto") from so much memory.

What a token takes is measured at two lengths with each way of checkpointing; the last column
extrapolates from that. Then the process may take no more memory than a smaller GPU has, less
0.75 GiB for the driver, and is tried: the longest sequence that trains with the chosen settings,
32,768 tokens at most, and one a twentieth longer that runs out of memory.

python benchmarks/selfplay_memory.py [--seconds 200] [--tiny] [--write]
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from common import RESULTS, described, machine, table, write
from selfplay_learner import (
    SHAPES,
    Case,
    Ours,
    byte_tokenizer,
    checkpoint_gradients,
    shaped,
    some_steps,
)

from unstable.algorithms.forward import find_trunk
from unstable.learners.policy import copy_sharing_weights, enable_full_activation_ckpt, plan_memory

NAME = "selfplay_memory"
MODELS = ("Qwen3 1.7B", "Llama 3.2 1B", "Qwen3 4B", "Llama 3.2 3B", "Qwen3 8B")
CARDS = (12, 16, 24, 32, 40, 48, 80)
DRIVER_GIB = 0.75
GIB = 2**30
WAYS = {
    "none": (False, False), "activation": (True, False), "gradient": (False, True),
    "both": (True, True),
}  # fmt: skip
SHORT = (4096, 8192)
LONGEST = 32_768
"""Sequences longer than this are not asked for."""
SHORTEST = 256
STEP = 1.05
"""From one length that is tried to the next."""
TRIES = 6
TRIED = ("longest", "too_long", "auto_fits")
HEADER = [
    "VRAM", "Activation Checkpointing", "Gradient Checkpointing", "Train Length Truncation",
    "longest that trained", "too long", "would fit with other settings",
]  # fmt: skip


class Trial:
    """A learner whose checkpointing can be switched, over a model that is made once."""

    def __init__(self, model: Any, device: str) -> None:
        case = Case("", 0, 0, 0, 1, (0, 0), (0, 0), rank=32)
        self.device = device
        self.ours = Ours(
            "",
            case,
            device,
            base=(copy_sharing_weights(model), byte_tokenizer()),
            pack_tokens=LONGEST,
        )
        self.policy = self.ours.learner.model
        self.weights = sum(p.numel() * p.element_size() for p in model.parameters())
        self.trained = sum(p.numel() for p in self.policy.parameters() if p.requires_grad)
        self.limit = float("inf")

    def switch(self, way: str) -> None:
        activation, gradient = WAYS[way]
        for layer in find_trunk(self.policy).layers:
            for block in layer.children():
                if isinstance(block.forward, partial):  # as `enable_full_activation_ckpt` made it
                    block.forward = block.forward.args[0]
        if activation:
            enable_full_activation_ckpt(self.policy)
        checkpoint_gradients(self.policy, gradient)

    def cap(self, gib: float | None) -> None:
        """Let the process have so much memory; None: all of it."""
        clean(self.device)
        self.limit = float("inf") if gib is None else gib * GIB
        if self.device == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            share = 1.0 if gib is None else min(1.0, gib * GIB / total)
            torch.cuda.set_per_process_memory_fraction(share)

    def peak(self, tokens: int) -> float:
        """Bytes at the most in an update with one sequence."""
        steps = some_steps(tokens, tokens, tokens)
        if self.device != "cuda":  # as if
            self.ours.update(some_steps(16, 16, 16))
            bytes_ = 6e9 + 2e6 * tokens
            if bytes_ > self.limit:
                raise torch.OutOfMemoryError("as if")
            return bytes_
        clean(self.device)
        torch.cuda.reset_peak_memory_stats()
        self.ours.update(steps)
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated())

    def fits(self, tokens: int) -> bool:
        try:
            self.peak(tokens)
        except torch.OutOfMemoryError:
            self.ours.learner.optimizer.zero_grad(set_to_none=True)
        else:
            return True
        clean(self.device)
        return False


def clean(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def slopes(trial: Trial) -> dict[str, dict[str, float]]:
    """Of each setting, bytes that are always there and bytes of a token."""
    costs = {}
    for way in WAYS:
        trial.switch(way)
        trial.peak(SHORTEST)  # kernels are made, and the optimiser's state
        few, more = (trial.peak(tokens) for tokens in SHORT)
        each = (more - few) / (SHORT[1] - SHORT[0])
        costs[way] = {"always": few - each * SHORT[0], "token": each}
    return costs


def chosen(trial: Trial, limit: float) -> dict[str, Any]:
    """What a learner takes that has a GPU of `limit` bytes for itself."""
    config = trial.policy.config.get_text_config()
    free = 0.95 * (limit - trial.weights - 4 * trial.trained)
    plan = plan_memory(config, free, trial.trained)
    settings = (plan.activation_checkpointing, plan.gradient_checkpointing)
    return {
        "way": next(way for way, switches in WAYS.items() if switches == settings),
        "max_train_len": plan.max_train_len, "fits": plan.fits, "words": str(plan),
    }  # fmt: skip


def tried(trial: Trial, guess: int, promised: int) -> dict[str, Any]:
    """The longest sequence that trains, from a guess, and one a step longer that does not."""
    tokens = min(LONGEST, max(SHORTEST, guess))
    longest, too_long = 0, None
    for _ in range(TRIES):
        if trial.fits(tokens):
            longest = tokens
            if tokens >= LONGEST or too_long is not None:
                break
            tokens = min(LONGEST, int(tokens * STEP))
        else:
            too_long = tokens
            if longest or tokens <= SHORTEST:
                break
            tokens = max(SHORTEST, int(tokens / STEP))
    return {"longest": longest, "too_long": too_long, "auto_fits": longest >= promised}


def measure(name: str, found: dict[str, Any], arguments: argparse.Namespace, end: float) -> Any:
    """Yields after each cell that `found` has got."""
    device = "cpu" if arguments.tiny else "cuda"
    trial = Trial(shaped(name, device, tiny=arguments.tiny), device)
    trial.cap(None)
    costs = slopes(trial)
    one: dict[str, Any] = {"weights_gib": trial.weights / GIB, "bytes": costs, "cards": {}}
    before = found.get(name, {}).get("cards", {})
    found[name] = one
    print(name, {way: f"{cost['always'] / GIB:.2f} GiB + {cost['token'] / 1e6:.3f} MB"
                 for way, cost in costs.items()}, flush=True)  # fmt: skip
    for card in CARDS:
        limit = (card - DRIVER_GIB) * GIB
        estimate = {
            way: max(0, int((limit - cost["always"]) / cost["token"]))
            for way, cost in costs.items()
        }
        row = {"estimate": estimate, **chosen(trial, limit)}
        earlier_row = before.get(str(card), {})
        if earlier_row.get("way") == row["way"]:
            row |= {key: earlier_row[key] for key in TRIED if key in earlier_row}
        one["cards"][str(card)] = row
    yield
    trained: dict[str, int] = {}
    for card, row in one["cards"].items():
        way, promised = row["way"], min(LONGEST, row["max_train_len"] or LONGEST)
        if row["estimate"][way] < SHORTEST:
            row.update(longest=0)
        elif trained.get(way) == LONGEST:  # with less memory
            row.update(longest=LONGEST, too_long=None, auto_fits=True)
        elif time.monotonic() < end:
            trial.switch(way)
            trial.cap(int(card) - DRIVER_GIB)
            row.update(tried(trial, int(0.97 * row["estimate"][way]), promised))
            trained[way] = row["longest"]
            trial.cap(None)
        print(name, card, json.dumps(row), flush=True)
        yield


def report(found: dict[str, Any]) -> str:
    on = {True: "on", False: "off"}
    lines: list[str] = []
    for name in MODELS:
        if name not in found:
            continue
        rows = []
        for card, row in found[name]["cards"].items():
            if row.get("longest") == 0:
                rows.append([f"{card} GB", "", "", "does not fit", "", "", ""])
                continue
            cut, longest, too_long = (
                row.get(key) for key in ("max_train_len", "longest", "too_long")
            )
            if row.get("auto_fits") is False:  # it counted on more than there was
                cut = longest
            rows.append([
                f"{card} GB", *(on[switch] for switch in WAYS[row["way"]]),
                "none" if cut is None else f"{cut:,}",
                "not tried" if longest is None else f"{longest:,}",
                "" if too_long is None else f"{too_long:,}",
                ", ".join(f"{way} {count:,}" for way, count in row["estimate"].items()),
            ])  # fmt: skip
        each = ", ".join(
            f"{way} {cost['token'] / 1e6:.2f} MB" for way, cost in found[name]["bytes"].items()
        )
        always = min(cost["always"] for cost in found[name]["bytes"].values()) / GIB
        weights = f"Weights {found[name]['weights_gib']:.1f} GiB, with adapter and optimiser"
        lines += [f"### {name}", ""]
        lines += [f"{weights} {always:.1f} GiB. A token, by checkpointing: {each}.", ""]
        lines += [table(HEADER, rows), ""]
    return "\n".join(lines)


def earlier() -> dict[str, Any]:
    """What an earlier call has measured."""
    kept = RESULTS / f"{NAME}.json"
    results = json.loads(kept.read_text())["results"] if kept.exists() else {}
    return {
        name: one
        for name, one in results.items()
        if all("way" in row for row in one["cards"].values())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing more then")
    parser.add_argument("--tiny", action="store_true", help="try it on a CPU")
    parser.add_argument("--write", action="store_true", help="keep the tables in results/")
    arguments = parser.parse_args()
    names = ("torch", "transformers", "peft")
    start = machine() | {"versions": {name: version(name) for name in names}}
    if not arguments.tiny:
        start["cpu"] = f"{torch.cuda.get_device_name()}; {start['cpu']}"
    begin = time.monotonic()
    found = earlier()
    text = ""
    models = arguments.models.split(",")
    for number, name in enumerate(models, 1):
        # An eighth of the time is left for each of those that follow.
        end = begin + arguments.seconds * (1 - (len(models) - number) / 8)
        for _ in measure(name, found, arguments, end):
            text = "\n".join([
                "# The learner and the memory of a GPU", "", *described(start, machine()), "",
                *(part.replace("\n", " ") + "\n" for part in (__doc__ or "").split("\n\n")[1:-1]),
                report(found),
            ])  # fmt: skip
            if arguments.write:
                write(NAME, text, {"machine": start, "results": found})
        clean("cpu" if arguments.tiny else "cuda")
        print(f"{name}: after {time.monotonic() - begin:.0f} s", flush=True)
    print(text)


if __name__ == "__main__":
    main()
