"""The learner beside the usual way of doing it: the same steps, weights and loss, ragged lengths.

"As usual" is written here after the published `unstable-rl` 0.1.2: prompt and answer joined and
tokenised again, the prompt once more for its length, one sequence at a time, log-softmax over the
whole vocabulary at every position. On a CPU both compute in float32 and times are CPU times, so
that they do not depend on what else the machine does; on a GPU both have a bfloat16 base and
autocast, and times are wall times. That both have the same loss is checked.

With `--table`: our learner alone on a GPU, models and passes of several sizes. The share of the
peak counts 4 operations per parameter and token, no matter what is computed twice; the peak is that
of a large product, measured in the same run.

python benchmarks/selfplay_learner.py [--cases short,long] [--device cpu] [--rounds 6] [--write]
python benchmarks/selfplay_learner.py --table [--seconds 150] [--tiny] [--write]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, described, machine, table, write

from unstable.algorithms import Reinforce
from unstable.core import Step
from unstable.learners.policy import choose_settings, copy_sharing_weights
from unstable.learners.standard_learner import StandardLearner

GOAL = 5.0
MAX_GENERATION = 256
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Case:
    """A model and a batch."""

    words: str
    hidden: int
    layers: int
    vocabulary: int
    steps: int
    prompt: tuple[int, int]
    answer: tuple[int, int]
    heads: tuple[int, int, int] = (4, 2, 32)
    intermediate: int = 3
    rank: int = 16
    usual_steps: int | None = None
    """The usual way is measured on so many of the steps only."""


CASES = {
    "short": Case("0.6 M weights, bytes", 128, 3, 264, 1000, (25, 35), (3, 6), usual_steps=200),
    "long": Case(
        "vocabulary of Qwen3", 128, 3, 151_936, 24, (150, 400), (20, 120), usual_steps=6
    ),
    "gpu": Case(
        "shape of Qwen3-1.7B", 2048, 28, 151_936, 384, (150, 800), (100, 600), (16, 8, 128), 3, 32,
        48,
    ),
}  # fmt: skip


class Usual:
    """One sequence at a time."""

    def __init__(self, folder: str, case: Case, device: str) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.device = device
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
        config = LoraConfig(
            r=case.rank, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM"
        )
        self.model = get_peft_model(base, config)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-5)
        self.trained = trained

    def update(self, steps: list[Step]) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for step in steps:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = self.loss(step) / len(steps)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        return total

    def loss(self, step: Step) -> Any:
        tokens = self.tokenizer(step.obs + step.act, return_tensors="pt")
        ids = tokens["input_ids"].to(self.device)
        logits = self.model(
            input_ids=ids, attention_mask=tokens["attention_mask"].to(self.device)
        ).logits
        logp = torch.log_softmax(logits, -1)
        taken = logp[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        answer = torch.zeros_like(taken)
        answer[:, len(self.tokenizer(step.obs)["input_ids"]) - 1 :] = 1.0
        return -step.reward * (taken * answer).sum() / MAX_GENERATION


class Ours:
    """The learner with a batch in its hand instead of a buffer."""

    def __init__(self, folder: str, case: Case, device: str, **options: Any) -> None:
        lora = {"lora_rank": case.rank, "lora_alpha": 32, "target_modules": TARGETS}
        self.learner = StandardLearner(
            folder, self, None, Reinforce(importance_cap=None), case.steps, mini_batch_size=1,
            max_generation_len=MAX_GENERATION, lora_cfg=lora, save_every=10**9, device=device,
            **options,
        )  # fmt: skip
        self.batch: list[Step] = []

    def get_batch(self, size: int, **_: bool) -> list[Step]:
        return self.batch[:size]

    def update(self, steps: list[Step]) -> float:
        self.batch = steps
        return self.learner.update_once(len(steps))["loss"]


def byte_tokenizer() -> Any:
    """A byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = ["<end>", *sorted_bytes()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = {"eos_token": "<end>", "pad_token": "<end>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **end)


def make_model(folder: Path, case: Case, device: str) -> str:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    byte_tokenizer().save_pretrained(folder)
    heads, groups, size = case.heads
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=case.vocabulary, hidden_size=case.hidden, num_hidden_layers=case.layers,
        intermediate_size=case.intermediate * case.hidden, num_attention_heads=heads,
        num_key_value_heads=groups, head_dim=size, tie_word_embeddings=True, eos_token_id=0,
    )  # fmt: skip
    with torch.device(device):
        model = Qwen3ForCausalLM(config)
    model.to(torch.bfloat16 if device == "cuda" else torch.float32).save_pretrained(folder)
    return str(folder)


def make_steps(case: Case) -> list[Step]:
    """Text and its tokens: a letter is a token, so that both train on the same."""
    rng = random.Random(0)
    letters = "bcdefghijklmnopqrstuvwxyz"
    alphabet = ["<end>", *sorted_bytes()]
    steps = []
    for number in range(case.steps):
        obs = "".join(rng.choices(letters, k=rng.randint(*case.prompt)))
        act = "".join(rng.choices(letters, k=rng.randint(*case.answer)))
        prompt, answer = ([alphabet.index(letter) for letter in text] for text in (obs, act))
        reward = rng.choice((-1.0, 1.0))
        steps.append(
            Step(0, obs, act, reward, "A", prompt_ids=prompt, completion_ids=answer, episode=number)
        )
    return steps


def sorted_bytes() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


class Timed:
    """Updates with the same steps, and how long they took."""

    def __init__(self, one: Usual | Ours, steps: list[Step], device: str) -> None:
        self.one, self.steps, self.device = one, steps, device
        self.first = one.update(steps)
        self.times: list[float] = []

    def update(self) -> None:
        clock = time.perf_counter if self.device == "cuda" else time.process_time
        begin = clock()
        self.one.update(self.steps)
        self.times.append(clock() - begin)

    @property
    def rate(self) -> float:
        return tokens_of(self.steps) / min(self.times)


def tokens_of(steps: list[Step]) -> int:
    return sum(len(step.prompt_ids) + len(step.completion_ids) for step in steps)


def measure(name: str, device: str, rounds: int) -> dict[str, Any]:
    case = CASES[name]
    steps = make_steps(case)
    some = steps[: case.usual_steps]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), case, device)
        usual = Timed(Usual(model, case, device), some, device)
        on_some = Ours(model, case, device).update(some)
        if device == "cuda":
            torch.cuda.empty_cache()
        ours = Timed(Ours(model, case, device), steps, device)
        # By turns: a machine that others use too is slower at one time than at another.
        for _ in range(rounds):
            usual.update()
            ours.update()
    close = 2e-2 if device == "cuda" else 1e-4
    if abs(on_some - usual.first) > close * max(1.0, abs(usual.first)):
        raise SystemExit(f"{name}: losses differ: {on_some} and {usual.first}")
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    return {
        "tokens": tokens_of(steps), "steps": case.steps, "ours_s": sorted(ours.times),
        "usual_s": sorted(usual.times), "ours": ours.rate, "usual": usual.rate,
        "memory_gib": memory, "rounds": rounds,
    }  # fmt: skip


# --- models and passes of several sizes -----------------------------------------------------------

QWEN3 = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128}
LLAMA = {"vocab_size": 128_256, "num_key_value_heads": 8}


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, Any]:
    return QWEN3 | {
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "Qwen3 0.6B": _qwen3(1024, 3072, 28, 16),
    "Qwen3 1.7B": _qwen3(2048, 6144, 28, 16),
    "Qwen3 4B": _qwen3(2560, 9728, 36, 32),
    "Qwen3 8B": _qwen3(4096, 12288, 36, 32) | {"tie_word_embeddings": False},
    "Llama 3.2 1B": LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "head_dim": 64,
    },
    "Llama 3.2 3B": LLAMA | {
        "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "head_dim": 128,
    },
}  # fmt: skip
SIZES = "selfplay_learner_sizes"
TABLE_SHAPES = ("Qwen3 1.7B", "Qwen3 0.6B", "Qwen3 4B", "Qwen3 8B")
PACKS = (16_384, 32_768, 8192, 65_536)
"""What is of most use comes first: time may run out."""
TABLE_TOKENS = 65_536
"""Of a batch at least."""
ENOUGH_SECONDS = 3.0


def shaped(name: str, device: str, *, tiny: bool = False) -> Any:
    """A random model of a shape, made where it is to be; `tiny`: of few and narrow layers."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes = {"tie_word_embeddings": True, **SHAPES[name]}
    if tiny:
        heads = 2 * sizes["num_key_value_heads"]
        sizes |= {
            "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "head_dim": 8,
            "num_hidden_layers": 2, "num_attention_heads": heads,
        }  # fmt: skip
    qwen = name.startswith("Qwen3")
    config: Any = Qwen3Config if qwen else LlamaConfig
    causal: Any = Qwen3ForCausalLM if qwen else LlamaForCausalLM
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            model = causal(
                config(**sizes, max_position_embeddings=131_072, eos_token_id=0, pad_token_id=0)
            )
    finally:
        torch.set_default_dtype(usual)
    model.tie_weights()
    return model.eval()


def peak_operations(device: str) -> float:
    """Operations per second of a large product."""
    if device != "cuda":
        return 1e11
    size = 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        _ = a @ a
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return float(2 * size**3 / min(times))


def some_steps(tokens: int, shortest: int, longest: int) -> list[Step]:
    """Steps of so many tokens together; prompts and answers as in the case `gpu`."""
    rng = random.Random(0)
    steps: list[Step] = []
    while tokens > 0:
        length = min(tokens, rng.randint(shortest, longest)) if tokens > shortest else shortest
        ids = [rng.randrange(1, 250) for _ in range(length)]
        border = max(1, round(length * rng.uniform(0.3, 0.7)))
        reward = rng.choice((-1.0, 1.0))
        steps.append(
            Step(0, "", "", reward, "A", prompt_ids=ids[:border], completion_ids=ids[border:],
                 episode=len(steps))
        )  # fmt: skip
        tokens -= length
    return steps


def run_table(arguments: argparse.Namespace, start: dict[str, Any]) -> None:
    """Measure row by row; what was measured earlier stays where it is not measured again."""
    device = "cpu" if arguments.tiny else "cuda"
    begin = time.monotonic()
    peak = peak_operations(device)
    print(f"a product does {peak / 1e12:.0f} TFLOP/s", flush=True)
    rows = earlier_rows()
    for name in arguments.shapes.split(","):
        if time.monotonic() - begin > arguments.seconds:
            print(f"{name}: no time left", flush=True)
            continue
        model = shaped(name, device, tiny=arguments.tiny)
        parameters = sum(p.numel() for p in model.parameters())
        learner = table_learner(model, device)
        for pack in (64, 128) if arguments.tiny else PACKS:
            if time.monotonic() - begin > arguments.seconds:
                print(f"{name}, {pack}: no time left", flush=True)
                continue
            row = {"model": name, "parameters": parameters, "pack": pack, "peak": peak}
            try:
                row |= table_row(learner, pack, device, tiny=arguments.tiny)
                row["share"] = 4 * parameters * row["tokens_per_s"] / peak
            except torch.OutOfMemoryError:
                row["error"] = "out of memory"
                learner.learner.optimizer.zero_grad(set_to_none=True)
            rows[name, pack] = row
            print(f"{time.monotonic() - begin:.0f} s", row, flush=True)
            if arguments.write:
                text = table_text(rows, start)
                write(SIZES, text, {"machine": start, "results": {"rows": list(rows.values())}})
        del model, learner
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    print(table_text(rows, start))


def earlier_rows() -> dict[tuple[str, int], dict[str, Any]]:
    kept = RESULTS / f"{SIZES}.json"
    if not kept.exists():
        return {}
    results = json.loads(kept.read_text())["results"]
    rows = [{"peak": results.get("peak"), **row} for row in results["rows"]]
    return {(row["model"], row["pack"]): row for row in rows}


def table_learner(model: Any, device: str) -> Ours:
    case = Case("", 0, 0, 0, 1, (0, 0), (0, 0), rank=32)
    return Ours(
        "", case, device, base=(copy_sharing_weights(model), byte_tokenizer()), pack_tokens=512
    )


def checkpoint_gradients(model: Any, on: bool) -> None:
    """Switch gradient checkpointing as the learner does."""
    if on:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()


def table_row(ours: Ours, pack: int, device: str, *, tiny: bool) -> dict[str, Any]:
    learner, lengths = ours.learner, (9, 40) if tiny else (250, 1400)
    if device == "cuda":
        torch.cuda.empty_cache()
    settings = choose_settings(
        learner.model, learner.device, 0.9, activation_checkpointing=False,
        gradient_checkpointing="auto", max_train_len=None, pack_tokens=pack,
    )  # fmt: skip
    checkpoint_gradients(learner.model, settings.gradient_checkpointing)
    learner.pack_tokens = pack
    steps = some_steps(2 * pack if tiny else max(TABLE_TOKENS, 2 * pack), *lengths)
    ours.update(some_steps(pack, *lengths))  # kernels and memory are made
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) < 3 and sum(times) < ENOUGH_SECONDS:
        begin = time.perf_counter()
        ours.update(steps)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {
        "tokens": tokens_of(steps),
        "seconds": times,
        "tokens_per_s": tokens_of(steps) / min(times),
        "gradient_checkpointing": settings.gradient_checkpointing,
        "peak_gib": peak,
    }


def table_text(rows: dict[tuple[str, int], dict[str, Any]], start: dict[str, Any]) -> str:
    names = list(TABLE_SHAPES)
    lines = []
    for (name, pack), row in sorted(rows.items(), key=lambda r: (names.index(r[0][0]), r[0][1])):
        cells = [name, f"{row['parameters'] / 1e9:.2f} B", f"{pack:,}"]
        if "error" in row:
            lines.append([*cells, row["error"], "", "", ""])
            continue
        lines.append([
            *cells, f"{row['tokens_per_s']:,.0f}", f"**{row['share']:.0%}**",
            "on" if row["gradient_checkpointing"] else "off", f"{row['peak_gib']:.0f} GiB",
        ])  # fmt: skip
    header = ["", "parameters", "tokens a pass", "tokens/s", "share of the peak",
              "gradient checkpointing", "memory"]  # fmt: skip
    peaks = sorted({round(row["peak"] / 1e12) for row in rows.values() if row.get("peak")})
    return "\n".join([
        "# The learner on a GPU", "", *described(start, machine()), "",
        "## Models and passes of several sizes", "",
        "LoRA of rank 32 on all linears, sequences of 250 to 1,400 tokens, about half of them",
        "trained; two passes a batch, 65,536 tokens at least, the best of three updates, of one",
        f"where it takes more than {ENOUGH_SECONDS:g} s. The share counts 4 operations per",
        "parameter and token, against a large product in the same run:",
        f"{' and '.join(map(str, peaks))} TFLOP/s. Goal: 50 %.", "", table(header, lines), "",
    ])  # fmt: skip


def report(found: dict[str, Any], start: dict[str, Any], end: dict[str, Any], device: str) -> str:
    rows = []
    rounds = max(one["rounds"] for one in found.values())
    for name, one in found.items():
        ratio = one["ours"] / one["usual"]
        rows.append([
            f"{CASES[name].words}: {one['steps']} steps, {one['tokens']:,} tokens",
            f"{one['ours']:,.0f}", f"{one['usual']:,.0f}", f"{ratio:.1f} x",
            f"{one['ours_s'][0]:.2f} s", f"≥ {GOAL:g} x",
        ])  # fmt: skip
    kind = "CPU second, float32" if device == "cpu" else "second, bfloat16 base"
    return "\n".join([
        "# The learner of self-play",
        "",
        f"LoRA on all linears, `mini_batch_size=1`, tokens per {kind}, both by turns, best of",
        f"{rounds} updates each.",
        "*As usual* is the way of the published `unstable-rl` 0.1.2, written anew in the script:",
        "see there. Both are given the same steps and have the same loss.",
        "",
        *described(start, end),
        "",
        table(["", "ours", "as usual", "ratio", "our update", "goal"], rows),
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="short,long", help=f"of {', '.join(CASES)}")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=6, help="updates of each, by turns")
    parser.add_argument("--table", action="store_true", help="models and passes of several sizes")
    parser.add_argument("--shapes", default=",".join(TABLE_SHAPES), help="of --table")
    parser.add_argument("--seconds", type=float, default=1e9, help="of --table: begin no more then")
    parser.add_argument("--tiny", action="store_true", help="of --table: try it on a CPU")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    if arguments.table and not arguments.tiny:
        arguments.device = "cuda"
    names = ("torch", "transformers", "peft")
    versions = {"versions": {name: version(name) for name in names}}
    start = machine() | versions
    if arguments.device == "cuda":
        start["cpu"] = f"{torch.cuda.get_device_name()}; {start['cpu']}"
    if arguments.table:
        run_table(arguments, start)
        return
    found = {
        name: measure(name, arguments.device, arguments.rounds)
        for name in arguments.cases.split(",")
    }
    text = report(found, start, machine(), arguments.device)
    print(text)
    if arguments.write:
        suffix = "" if arguments.device == "cpu" else "_gpu"
        write(f"selfplay_learner{suffix}", text)


if __name__ == "__main__":
    main()
