"""vLLM as an engine, against transformers and PEFT; runs where vLLM is: `make test-vllm`."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from unstable.actor import VLLMActor
from unstable.engines import Completion, EngineError, Sampling
from unstable.engines.vllm_engine import VLLMEngine, choose_max_rank

ADAPTERS = 10
SLOTS = 3
POSITIONS = 400
STOPS = {256, 257}
GREEDY = Sampling(0.0, 1.0, 24)
PROMPTS = [b"a", b"board: x.o|.x.|o.. your move?", b"one two three", b"\x00\xff\x80"]


class Stage(NamedTuple):
    """An engine, its model and adapters, and the loop that all requests come from."""

    model: Path
    adapters: list[Path]
    engine: VLLMEngine
    runner: asyncio.Runner


def make_model(folder: Path) -> None:
    """A small Qwen3 with random weights, that reads bytes; 256 ends an answer, as does 257."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    own_names = [*range(33, 127), *range(161, 173), *range(174, 256)]  # others are named from 256
    others = (byte for byte in range(256) if byte not in own_names)
    names = dict(zip(own_names, own_names, strict=True)) | {
        b: 256 + i for i, b in enumerate(others)
    }
    tokenizer = Tokenizer(models.BPE({chr(name): byte for byte, name in names.items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=258, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
        max_position_embeddings=POSITIONS, eos_token_id=256, initializer_range=0.15,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[256, 257])
    model.save_pretrained(folder)


def make_adapter(model: Path, folder: Path, seed: int, rank: int = 4) -> None:
    """Random in both halves, so that it does something."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    tuned = get_peft_model(base, LoraConfig(r=rank, lora_alpha=8, target_modules=targets))
    torch.manual_seed(seed)
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    tuned.save_pretrained(folder)


@functools.cache
def reference(model: Path, adapter: Path | None) -> Any:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        network = PeftModel.from_pretrained(network, adapter)
    return network.eval()


def true_logprobs(
    model: Path, adapter: Path | None, answer: Completion, temperature: float = 1.0
) -> list[float]:
    import torch

    ids = [*answer.prompt_ids, *answer.token_ids]
    with torch.no_grad():
        logits = reference(model, adapter)(torch.tensor([ids])).logits[0]
    picked = torch.tensor(answer.token_ids)[:, None]
    rows = logits[len(answer.prompt_ids) - 1 : -1].float()
    return torch.log_softmax(rows / temperature, -1).gather(1, picked)[:, 0].tolist()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed; `make test-vllm` has an environment for it")
    folder = tmp_path_factory.mktemp("vllm")
    model = folder / "model"
    make_model(model)
    adapters = [folder / f"adapter-{i}" for i in range(ADAPTERS)]
    for seed, adapter in enumerate(adapters):
        make_adapter(model, adapter, seed)
    with asyncio.Runner() as runner:
        yield Stage(model, adapters, start(model), runner)


def start(model: Path) -> VLLMEngine:
    return VLLMEngine(str(model), max_parallel_seq=8, max_loras=SLOTS, max_lora_rank=4)


def ask(
    stage: Stage, prompt: bytes, sampling: Sampling = GREEDY, adapter: Path | None = None
) -> Completion:
    return stage.runner.run(
        stage.engine.generate(tuple(prompt), sampling, adapter and str(adapter))
    )


def ask_all(
    stage: Stage, requests: Iterable[tuple[bytes, Sampling, Path | None]]
) -> list[Completion]:
    """At the same time."""

    async def apply_together() -> list[Completion]:
        return await asyncio.gather(*(
            stage.engine.generate(tuple(prompt), sampling, adapter and str(adapter))
            for prompt, sampling, adapter in requests
        ))  # fmt: skip

    return stage.runner.run(apply_together())


def check(stage: Stage, adapter: Path | None, answer: Completion, temperature: float = 1.0) -> None:
    assert len(answer.logprobs) == len(answer.token_ids) > 0
    expected = true_logprobs(stage.model, adapter, answer, temperature)
    assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def processes(engine: VLLMEngine) -> list[Any]:
    return list(engine._llm.engine_core.resources.engine_manager.processes)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")
def test_without_vllm_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="vLLM cannot be imported"):
        VLLMEngine(str(tmp_path))


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (2, 8), (8, 8), (32, 32), (300, 320)])
def test_max_rank_is_rounded_up_for_vllm(asked: int, given: int) -> None:
    assert choose_max_rank(asked) == given


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 0.45 * 60 / 80),
        ({"learner": {"options": {"memory_share": 0.7}}}, 0.25 * 60 / 80),
        ({"engine": {"gpu_memory_utilization": 0.3}}, 0.3),
    ],
    ids=["default", "larger learner", "configured"],
)
def test_auto_gives_vllm_the_memory_that_the_learner_leaves(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], share: float
) -> None:
    """On one GPU with 60 of 80 GiB free, where playing and learning take turns."""
    import torch

    from unstable import engines
    from unstable.config import make_config
    from unstable.run import parts, start

    options: dict[str, Any] = {}
    recorder = functools.partial(lambda model, **given: options.update(given, model=model))
    monkeypatch.setattr("unstable.engines.vllm_engine.VLLMEngine", recorder)
    monkeypatch.setattr(engines, "_has_vllm", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 << 30, 80 << 30))
    monkeypatch.setattr(start, "Collector", dict)
    config = make_config(changes)
    made = start._make_part(config, dict, "Collector", **parts.collector_arguments(config, "m"))
    engines.make_engine(made["vllm_config"])
    assert options["model"] == "m"
    assert options["gpu_memory_utilization"] == pytest.approx(share)


def test_a_model_or_device_that_is_not_there_is_named(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=str(tmp_path)):
        VLLMEngine(str(tmp_path))
    with pytest.raises(EngineError, match="'cuda'"):
        VLLMEngine(str(stage.model), device="cuda")


def test_logprobs_are_those_of_the_model_with_its_adapter(stage: Stage) -> None:
    """After the temperature, with two adapters and none in the same batch."""
    requests = [
        (prompt, Sampling(temperature, 1.0, 24, seed=7), adapter)
        for adapter in (None, *stage.adapters[:2])
        for prompt in PROMPTS
        for temperature in (0.5, 1.0, 0.0)
    ]
    answers = ask_all(stage, requests)
    for (prompt, sampling, adapter), answer in zip(requests, answers, strict=True):
        assert answer.prompt_ids == tuple(prompt)
        check(stage, adapter, answer, sampling.temperature or 1.0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_vllm_and_learner_log_probabilities_agree(stage: Stage, temperature: float) -> None:
    import torch

    from unstable.algorithms import PPO
    from unstable.core import Step
    from unstable.learners.policy import load_policy

    adapter = stage.adapters[0]
    sampled = [Sampling(temperature, 1.0, 24, seed=seed) for seed in range(3)]
    answers = ask_all(stage, [(prompt, one, adapter) for prompt in PROMPTS for one in sampled])
    steps = [
        Step(0, "", "", 1.0, "e", {}, a.prompt_ids, a.token_ids, a.logprobs, temperature)
        for a in answers
    ]
    algorithm = PPO()
    policy = load_policy(str(stage.model), torch.device("cpu"), torch.float32, {}, str(adapter))
    algorithm.initialize(*policy, "cpu", 24)
    samples = algorithm.prepare_steps(steps)
    for sample, values in zip(samples, algorithm.logprobs(samples), strict=True):
        assert values == pytest.approx(sample.old_logprobs, abs=1e-4)
    assert algorithm.update(samples)["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


def test_many_adapters_share_few_ids(stage: Stage) -> None:
    """Each answers for itself, and greedily as PEFT would: the first token is its most likely."""
    requests = [(PROMPTS[1], GREEDY, adapter) for adapter in stage.adapters * 3]
    answers = ask_all(stage, requests)
    for (_, _, adapter), answer in zip(requests, answers, strict=True):
        check(stage, adapter, answer)
    assert len({answer.token_ids for answer in answers}) == ADAPTERS
    assert sorted(stage.runner.run(stage.engine._llm.list_loras())) == [1, 2, 3]


def test_a_folder_written_anew_is_loaded_anew(stage: Stage, tmp_path: Path) -> None:
    """Though vLLM keeps what it computed for the beginning of a long prompt."""
    prompt = bytes(range(40, 120)) * 4
    for adapter in stage.adapters[:2]:
        shutil.copytree(adapter, tmp_path, dirs_exist_ok=True)
        answer = ask(stage, prompt, adapter=tmp_path)
        check(stage, adapter, answer)
        assert ask(stage, prompt, adapter=tmp_path).token_ids == answer.token_ids


def test_seed_fixes_tokens_whatever_the_batch(stage: Stage) -> None:
    alone = ask(stage, b"roll", Sampling(1.0, 1.0, 24, seed=-1))
    crowd = [(b"roll", Sampling(1.0, 1.0, 24, seed=seed), None) for seed in (5, -1, 6, 2**64 + 5)]
    five, same, six, huge = ask_all(stage, crowd)
    assert same.token_ids == alone.token_ids
    assert len({answer.token_ids for answer in (five, same, six)}) == 3
    assert huge.token_ids == five.token_ids  # seeds are taken modulo 2**63
    free = ask_all(stage, [(b"roll", Sampling(1.0, 1.0, 24), None)] * 2)
    assert free[0].token_ids != free[1].token_ids


def test_the_token_that_stops_an_answer_is_part_of_it(stage: Stage) -> None:
    requests = [(b"talk", Sampling(1.0, 1.0, 40, seed=seed), None) for seed in range(150)]
    ends = set()
    for answer in ask_all(stage, requests):
        if answer.finish_reason == "stop":
            ends.add(answer.token_ids[-1])
            body = answer.token_ids[:-1]
        else:
            body = answer.token_ids
            assert len(body) == 40
        assert not STOPS & set(body)
        assert answer.text == bytes(body).decode(errors="replace")
        check(stage, None, answer)
    assert ends == STOPS  # the tokenizer's own, and one that only the generation config has


def test_an_answer_ends_where_the_context_does(stage: Stage) -> None:
    answer = ask(stage, b"x" * (POSITIONS - 3), Sampling(0.0, 1.0, 1000))
    assert (len(answer.token_ids), answer.finish_reason) == (3, "length")


@pytest.mark.parametrize(
    ("prompt", "sampling", "says"),
    [
        ((1,) * POSITIONS, GREEDY, f"{POSITIONS} tokens leaves no room.*max_model_len"),
        ((), GREEDY, "empty"),
        ((100_000,), GREEDY, "100000"),
        ((1,), Sampling(temperature=-1.0), "temperature"),
        ((1,), Sampling(max_tokens=0), "max_tokens"),
    ],
    ids=["too long", "empty", "unknown token", "temperature", "no tokens"],
)
def test_bad_request_fails_alone(
    stage: Stage, prompt: tuple[int, ...], sampling: Sampling, says: str
) -> None:
    with pytest.raises(EngineError, match=says):
        stage.runner.run(stage.engine.generate(prompt, sampling))
    check(stage, None, ask(stage, b"still there?"))


@pytest.mark.parametrize("fault", ["missing", "rank", "torn", "another model's", "not finite"])
def test_bad_adapter_fails_alone(stage: Stage, tmp_path: Path, fault: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "adapter"
    weights = folder / "adapter_model.safetensors"
    if fault == "rank":
        make_adapter(stage.model, folder, 0, rank=16)
    elif fault != "missing":
        shutil.copytree(stage.adapters[0], folder)
    if fault == "torn":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif fault == "another model's":
        save_file({key: value[:, :3].clone() for key, value in load_file(weights).items()}, weights)
    elif fault == "not finite":
        save_file({key: value * float("nan") for key, value in load_file(weights).items()}, weights)
    with pytest.raises(EngineError, match=str(folder)):
        ask(stage, PROMPTS[1], adapter=folder)
    for answer, adapter in zip(
        ask_all(stage, [(PROMPTS[1], GREEDY, adapter) for adapter in stage.adapters[:SLOTS]]),
        stage.adapters,
        strict=False,
    ):
        check(stage, adapter, answer)


def test_cancelled_request_frees_room(stage: Stage) -> None:
    before = stage.engine.stats()
    assert (before["queued"], before["running"]) == (0, 0)

    async def story() -> None:
        endless = Sampling(0.0, 1.0, POSITIONS)
        adapters = [str(adapter) for adapter in stage.adapters[: SLOTS + 1]]
        tasks = [
            asyncio.create_task(stage.engine.generate((1,), endless, adapter))
            for adapter in adapters
        ]
        while stage.engine.stats()["running"] < SLOTS:
            await asyncio.sleep(0.01)
        assert stage.engine.stats()["queued"] == 1  # there is no slot for its adapter
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(result, asyncio.CancelledError)
            for result in await asyncio.gather(*tasks, return_exceptions=True)
        )
        while stage.engine._llm.output_processor.has_unfinished_requests():
            await asyncio.sleep(0.01)

    stage.runner.run(asyncio.wait_for(story(), 120))
    after = stage.engine.stats()
    assert (after["queued"], after["running"]) == (0, 0)
    answers = ask_all(stage, [(b"count", Sampling(1.0, 1.0, 40), None)] * 5)
    counted = stage.engine.stats()["tokens"] - after["tokens"]
    assert counted == sum(len(answer.token_ids) for answer in answers)


async def under_way(stage: Stage, engine: VLLMEngine) -> list[asyncio.Task[Completion]]:
    """Requests that are being answered, and one that waits for its adapter's turn."""
    tasks = [
        asyncio.create_task(engine.generate((1,), Sampling(0.0, 1.0, POSITIONS), str(adapter)))
        for adapter in stage.adapters[: SLOTS + 1]
    ]
    while engine.stats()["running"] < SLOTS:
        await asyncio.sleep(0.01)
    return tasks


def test_a_killed_process_fails_its_requests(stage: Stage) -> None:
    (process,) = processes(stage.engine)

    async def story() -> None:
        tasks = await under_way(stage, stage.engine)
        os.kill(process.pid, signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, EngineError) for result in results), results
        for adapter in (None, str(stage.adapters[0]), str(stage.adapters[-1])):
            with pytest.raises(EngineError, match="ended"):
                await stage.engine.generate((1,), GREEDY, adapter)
        await stage.engine.close()

    stage.runner.run(asyncio.wait_for(story(), 120))


def test_actor_close_fails_vllm_requests(stage: Stage) -> None:
    config = {
        "model_name": str(stage.model), "engine": "vllm", "max_loras": SLOTS, "max_tokens": 24,
        "max_parallel_seq": 8, "max_model_len": POSITIONS // 2, "lora_config": {"lora_rank": 4},
    }  # fmt: skip
    actor = VLLMActor(config)
    engine = actor.engine
    assert isinstance(engine, VLLMEngine)
    assert engine.max_model_len == POSITIONS // 2
    (process,) = processes(engine)

    async def story() -> None:
        answer = await actor.generate("your move", str(stage.adapters[5]), temperature=1.0, seed=1)
        assert answer.prompt_ids == tuple(b"your move")
        check(stage, stage.adapters[5], answer)
        tasks = await under_way(stage, engine)
        await actor.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, EngineError) for result in results), results
        assert all("closed" in str(result) for result in results), results
        for adapter in (None, str(stage.adapters[0])):
            with pytest.raises(EngineError, match="closed"):
                await engine.generate((1,), GREEDY, adapter)
        await engine.close()

    stage.runner.run(asyncio.wait_for(story(), 120))
    process.join(120)
    assert not process.is_alive()
