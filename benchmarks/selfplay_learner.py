"""The learner beside the usual way of doing it: the same steps, weights and loss, ragged lengths.

"As usual" is written here after the published `unstable-rl` 0.1.2: prompt and answer joined and
tokenised again, the prompt once more for its length, one sequence at a time, log-softmax over the
whole vocabulary at every position. On a CPU both compute in float32 and times are CPU times, so
that they do not depend on what else the machine does; on a GPU both have a bfloat16 base and
autocast, and times are wall times. That both have the same loss is checked.

python benchmarks/selfplay_learner.py [--cases short,long] [--device cpu] [--rounds 6] [--write]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import described, machine, table, write

from unstable.algorithms import Reinforce
from unstable.core import Step
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

    def __init__(self, folder: str, case: Case, device: str) -> None:
        lora = {"lora_rank": case.rank, "lora_alpha": 32, "target_modules": TARGETS}
        self.learner = StandardLearner(
            folder, self, None, Reinforce(importance_cap=None), case.steps, mini_batch_size=1,
            max_generation_len=MAX_GENERATION, lora_cfg=lora, save_every=10**9, device=device,
        )  # fmt: skip
        self.batch: list[Step] = []

    def get_batch(self, size: int, *, whole_games: bool = False) -> list[Step]:  # noqa: ARG002
        return self.batch[:size]

    def update(self, steps: list[Step]) -> float:
        self.batch = steps
        return self.learner.update_once(len(steps))["loss"]


def make_model(folder: Path, case: Case, device: str) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    end = {"eos_token": "<end>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **end).save_pretrained(folder)
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
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    arguments = parser.parse_args()
    names = ("torch", "transformers", "peft")
    versions = {"versions": {name: version(name) for name in names}}
    start = machine() | versions
    if arguments.device == "cuda":
        start["cpu"] = f"{torch.cuda.get_device_name()}; {start['cpu']}"
    found = {
        name: measure(name, arguments.device, arguments.rounds)
        for name in arguments.cases.split(",")
    }
    text = report(found, start, machine(), arguments.device)
    print(text)
    if arguments.write:
        suffix = "" if arguments.device == "cpu" else "_gpu"
        write(f"selfplay_learner{suffix}", text, {"machine": start, "results": found})


if __name__ == "__main__":
    main()
