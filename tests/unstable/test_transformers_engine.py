"""Continuous batches give what the model itself gives, one request at a time."""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import plain_kernels
import pytest
import torch
from small_qwen import (
    EOS,
    byte_tokenizer,
    logprobs_of,
    save_adapter,
    save_qwen,
    small_qwen,
    with_adapter,
)
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from unstable.engines import Completion, EngineError, Sampling
from unstable.engines.fused_model import fuse_model
from unstable.engines.paged_decoder import PagedDecoder
from unstable.engines.pages import PAGE, PagePool
from unstable.engines.transformers_engine import TransformersEngine

CUDA = torch.cuda.is_available()
LENGTH = 256
KINDS = ["slots", "paged"]


def make_engine(kind: str, model: Any, **options: Any) -> TransformersEngine:
    """An engine that keeps keys and values in slots, or in pages: on a GPU as it chooses itself."""
    engine = TransformersEngine(deepcopy(model), max_model_len=LENGTH, **options)
    if kind == "paged" and not CUDA:
        network = fuse_model(copy := deepcopy(model), LENGTH, plain_kernels)
        assert network is not None
        engine._policies.base.decoder = PagedDecoder(
            copy, network, engine.max_parallel_seq, LENGTH, engine.stop
        )
    return engine


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    lengths = [rng.randint(1, longest) for _ in range(count)]
    return [tuple(rng.randrange(256) for _ in range(length)) for length in lengths]


def answer_all(engine: TransformersEngine, requests: list[Any], late: bool = True) -> list[Any]:
    """Some ask at once, others join while those are being answered."""

    async def one(number: int, request: Any) -> Completion:
        for _ in range(number % 5 if late else 0):
            await asyncio.sleep(0)
        return await engine.generate(*request)

    async def everybody() -> list[Any]:
        tasks = [one(number, request) for number, request in enumerate(requests)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(everybody())


def check(
    models: Any, requests: list[Any], answers: list[Any], within: float = 2e-4 if CUDA else 1e-5
) -> None:
    """Each answer has the log-probabilities of its model, or of the one of its adapter."""
    for (prompt, _, folder), answer in zip(requests, answers, strict=True):
        model = models[folder] if isinstance(models, dict) else models
        expected = logprobs_of(model, prompt, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=within)


@pytest.fixture(scope="module")
def model() -> Any:
    return small_qwen()


@pytest.fixture(scope="module")
def adapters(model: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str | None]:
    root = tmp_path_factory.mktemp("adapters")
    changes: list[dict[str, Any]] = [
        {},
        {"r": 6, "use_rslora": True, "target_modules": ["k_proj", "gate_proj", "up_proj"]},
        {"r": 2, "target_modules": ["q_proj", "lm_head"]},
    ]
    return [None, *(save_adapter(root / str(i), model, i, **c) for i, c in enumerate(changes))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_a_batch_has_its_own_adapter(
    kind: str, model: Any, adapters: list[str | None]
):
    engine = make_engine(kind, model, max_parallel_seq=7)
    requests = [
        (prompt, Sampling(1.0, 0.9, 3 + number % 9, seed=number), adapters[number % 4])
        for number, prompt in enumerate(prompts(30))
    ]
    alone = {folder: with_adapter(model, folder) for folder in adapters}
    answers = answer_all(engine, requests)
    check(alone, requests, answers)
    for (prompt, sampling, _), answer in zip(requests, answers, strict=True):
        assert len(answer.token_ids) == sampling.max_tokens or answer.token_ids[-1] == EOS
        assert answer.prompt_ids == prompt
    assert engine.stats()["tokens"] == sum(len(answer.token_ids) for answer in answers)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_do_not_depend_on_other_requests(kind: str, model: Any, adapters: list[str | None]):
    ways = [(0.7, 0.8), (1.0, 1.0), (0.0, 1.0)]
    requests = [
        (prompt, Sampling(*ways[number % 3], 8, seed=number), adapters[number % 4])
        for number, prompt in enumerate(prompts(24))
    ]
    together = answer_all(make_engine(kind, model), requests)
    alone = make_engine(kind, model)
    for request, answer in zip(requests, together, strict=True):
        (same,) = answer_all(alone, [request])
        assert same.token_ids == answer.token_ids


def test_equal_requests_in_equal_order_are_equal_to_the_last_bit(
    model: Any, adapters: list[str | None]
):
    requests = [
        (prompt, Sampling(1.0, 1.0, 6, seed=number), adapters[number % 2])
        for number, prompt in enumerate(prompts(20))
    ]
    used = TransformersEngine(deepcopy(model), max_parallel_seq=8)
    answer_all(used, [(p, s, adapters[2]) for p, s, _ in requests])
    assert answer_all(used, requests) == answer_all(
        TransformersEngine(deepcopy(model), max_parallel_seq=8), requests
    )


def test_equal_prompts_get_different_answers(model: Any, adapters: list[str | None]):
    engine = TransformersEngine(deepcopy(model))
    (prompt,) = prompts(1, seed=3)
    requests = [(prompt, Sampling(1.0, 1.0, 6, seed=n), adapters[n % 2]) for n in range(12)]
    answers = answer_all(engine, requests, late=False)
    assert len({answer.token_ids for answer in answers}) > 6
    check({folder: with_adapter(model, folder) for folder in adapters[:2]}, requests, answers)


def test_long_prompts_are_read_in_pieces(model: Any):
    engine = TransformersEngine(deepcopy(model), prefill_tokens=600)
    engine._policies.base.decoder.chunk_tokens = 100
    requests = [(p, Sampling(1.0, 1.0, 4, seed=0), None) for p in prompts(20, longest=200)]
    check(model, requests, answer_all(engine, requests))


SMALL: dict[str, Any] = {
    "vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2,
    "max_position_embeddings": 256, "eos_token_id": EOS, "pad_token_id": 257,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(**SMALL)),
        (Gemma2ForCausalLM, Gemma2Config(**SMALL, sliding_window=6)),  # soft caps, windows
        (Gemma3ForCausalLM, Gemma3TextConfig(**SMALL, sliding_window=6)),
    ],
)
def test_other_decoders_run_through_their_own_forward(kind: Any, config: Any):
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    engine = TransformersEngine(deepcopy(model), max_parallel_seq=5)
    requests = [(p, Sampling(1.0, 1.0, 8, seed=n), None) for n, p in enumerate(prompts(12))]
    check(model, requests, answer_all(engine, requests))


def test_bfloat16_is_close(model: Any, adapters: list[str | None]):
    engine = TransformersEngine(deepcopy(model).bfloat16())
    requests = [(p, Sampling(1.0, 1.0, 6, seed=1), adapters[1]) for p in prompts(8)]
    check(with_adapter(model, adapters[1]), requests, answer_all(engine, requests), 0.35)


@pytest.mark.parametrize("kind", KINDS)
def test_the_stop_token_ends_an_answer_and_is_part_of_it(kind: str, model: Any):
    stopping = deepcopy(model)
    stopping.generation_config.eos_token_id = list(range(0, 256, 3))
    engine = make_engine(kind, stopping, tokenizer=byte_tokenizer())
    answers = answer_all(engine, [(p, Sampling(1.0, 1.0, 50, seed=1)) for p in prompts(10)])
    for answer in answers:
        assert answer.finish_reason == "stop"
        assert answer.token_ids[-1] in (*range(0, 256, 3), EOS)
        assert all(token % 3 and token != EOS for token in answer.token_ids[:-1])
        assert answer.text == byte_tokenizer().decode(
            answer.token_ids[:-1], skip_special_tokens=True
        )


def test_answers_end_where_the_model_does(model: Any):
    model = deepcopy(model)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    engine = TransformersEngine(model, max_model_len=20)
    (answer,) = answer_all(engine, [((1,) * 15, Sampling(1.0, 1.0, 4096, seed=0))])
    assert (len(answer.token_ids), answer.finish_reason) == (5, "length")
    for prompt, complaint in [
        ((1,) * 20, r"20 tokens .*max_model_len is 20"),
        ((), "empty prompt"),
        ((1, 258), "outside of the vocabulary"),
    ]:
        with pytest.raises(EngineError, match=complaint):
            asyncio.run(engine.generate(prompt, Sampling()))


def test_few_adapters_are_kept_and_all_are_served(model: Any, tmp_path: Path):
    folders = [save_adapter(tmp_path / str(i), model, i) for i in range(5)]
    engine = TransformersEngine(deepcopy(model), max_loras=2)
    requests = [
        (prompt, Sampling(1.0, 1.0, 4, seed=0), folders[number % 5])
        for number, prompt in enumerate(prompts(15))
    ]
    alone = {folder: with_adapter(model, folder) for folder in folders}
    check(alone, requests, answer_all(engine, requests))
    assert len(engine._policies) == 2


def test_an_adapter_that_was_written_again_is_read_again(model: Any, tmp_path: Path):
    engine = TransformersEngine(deepcopy(model))
    for seed in (0, 1):
        folder = save_adapter(tmp_path / "adapter", model, seed)
        requests = [((1, 2, 3), Sampling(1.0, 1.0, 4, seed=0), folder)]
        check(with_adapter(model, folder), requests, answer_all(engine, requests))


def test_a_whole_model_in_place_of_an_adapter(model: Any, tmp_path: Path):
    engine = TransformersEngine(save_qwen(tmp_path / "base"), device="cpu")
    other = save_qwen(tmp_path / "trained", seed=5)
    requests = [
        (p, Sampling(1.0, 1.0, 4, seed=0), (None, other)[number % 2])
        for number, p in enumerate(prompts(10))
    ]
    check({None: model, other: small_qwen(5)}, requests, answer_all(engine, requests))


def test_a_bad_adapter_fails_its_request_alone(model: Any, tmp_path: Path):
    empty, torn = tmp_path / "empty", tmp_path / "torn"
    empty.mkdir()
    save_adapter(torn, model, 0)
    (torn / "adapter_model.safetensors").write_bytes(b"torn")
    other_size = save_adapter(tmp_path / "other", small_qwen(head_dim=16), 0)
    dora = save_adapter(tmp_path / "dora", model, 0, use_dora=True)
    engine = TransformersEngine(deepcopy(model))
    sampling = Sampling(1.0, 1.0, 4, seed=0)
    folders = [str(empty), str(torn), other_size, dora, str(tmp_path / "none"), None]
    *bad, good = answer_all(engine, [((1, 2), sampling, folder) for folder in folders])
    assert all(isinstance(answer, EngineError) for answer in bad)
    assert all(str(tmp_path) in str(answer) for answer in bad)
    assert len(good.token_ids) > 0


def copy_adapter(folder: Path, model: Any, value: float) -> str:
    path = save_adapter(folder, model, 0)
    adapted = with_adapter(model, path)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(value)
    adapted.save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_non_finite_model_fails_only_its_requests(kind: str, model: Any, tmp_path: Path):
    engine = make_engine(kind, model)
    sampling, short = Sampling(1.0, 1.0, 4, seed=0), (2,) * 5
    (alone,) = answer_all(engine, [(short, sampling)])
    huge = copy_adapter(tmp_path / "huge", model, 1e38)
    no_number = copy_adapter(tmp_path / "nan", model, float("nan"))
    for broken in (huge, no_number):
        requests = [((1,) * 40, sampling, broken), (short, sampling), (short, sampling, broken)]
        *_, beside, other = answers = answer_all(engine, requests)
        assert isinstance(answers[0], EngineError)
        assert isinstance(other, EngineError)
        assert "not finite" in str(answers[0])
        assert beside.token_ids == alone.token_ids
        (after,) = answer_all(engine, [(short, sampling)])  # where the broken one was
        assert after.token_ids == alone.token_ids
    assert engine.stats()["running"] == 0


def test_cancelled_request_frees_its_row(model: Any):
    async def ask() -> Completion:
        model.generation_config.eos_token_id = None
        engine = TransformersEngine(deepcopy(model), max_parallel_seq=1)
        endless = asyncio.create_task(engine.generate((1,), Sampling(1.0, 1.0, 200, seed=0)))
        waiting = asyncio.create_task(engine.generate((1,), Sampling(1.0, 1.0, 200, seed=0)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert engine.stats() == {"queued": 1, "running": 1, "tokens": engine.stats()["tokens"]}
        endless.cancel()
        waiting.cancel()
        answer = await engine.generate((1,), Sampling(1.0, 1.0, 2, seed=0))
        assert engine.stats()["tokens"] < 50
        return answer

    assert len(asyncio.run(ask()).token_ids) == 2


def test_close_fails_requests_in_flight(model: Any):
    async def ask() -> list[Any]:
        engine = TransformersEngine(deepcopy(model), max_parallel_seq=1)
        tasks = [
            asyncio.create_task(engine.generate((1,), Sampling(1.0, 1.0, 200))) for _ in range(3)
        ]
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.generate((1,), Sampling())
        return await asyncio.gather(*tasks, return_exceptions=True)

    for answer in asyncio.run(asyncio.wait_for(ask(), 30)):
        assert isinstance(answer, EngineError)
        assert "closed" in str(answer)


def test_closed_event_loop_leaves_no_requests(model: Any):
    engine = TransformersEngine(deepcopy(model), max_parallel_seq=2)

    async def leave_early() -> None:
        for seed in range(4):  # drawn freely, one of them may end with its first token
            asyncio.create_task(  # noqa: RUF006
                engine.generate((1,), Sampling(1.0, 1.0, 200, seed=seed))
            )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.stats()["running"] == 2

    asyncio.run(leave_early())
    assert engine.stats() == {"queued": 0, "running": 0, "tokens": engine.stats()["tokens"]}
    (answer,) = answer_all(engine, [((1, 2), Sampling(1.0, 1.0, 4, seed=0))])
    assert answer.token_ids


def test_failed_step_fails_all_requests(model: Any, monkeypatch: pytest.MonkeyPatch):
    engine = TransformersEngine(deepcopy(model))
    decoder = engine._policies.base.decoder

    def out_of_memory(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "_forward", out_of_memory)
        answers = answer_all(engine, [(p, Sampling(max_tokens=4)) for p in prompts(5)], late=False)
        assert [str(answer) for answer in answers] == [
            "Qwen3ForCausalLM: RuntimeError: out of memory"
        ] * 5
    (answer,) = answer_all(engine, [((1, 2), Sampling(1.0, 1.0, 4, seed=0))])
    assert answer.token_ids
    assert engine.stats()["running"] == 0


# --- pages ----------------------------------------------------------------------------------


def requests_of(
    count: int, folders: list[Any], longest: int = 150, seed: int = 0
) -> list[tuple[tuple[int, ...], Sampling, Any]]:
    rng = random.Random(seed)
    return [
        (
            tuple(rng.randrange(256) for _ in range(rng.randint(1, longest))),
            Sampling(1.0, (1.0, 0.9)[number % 2], rng.randint(2, 12), seed=number),
            folders[number % len(folders)],
        )
        for number in range(count)
    ]


def test_answers_of_one_token_come_from_the_prompt_alone(model: Any):
    engine = make_engine("paged", model, max_parallel_seq=5)
    requests = [
        (prompt, Sampling(1.0, 1.0, 1, seed=number), None)
        for number, (prompt, _, _) in enumerate(requests_of(9, [None]))
    ]
    answers = answer_all(engine, requests)
    assert [len(answer.token_ids) for answer in answers] == [1] * 9
    check(model, requests, answers)


def test_rows_of_any_length_have_their_own_pages(model: Any):
    engine = make_engine("paged", model, max_parallel_seq=5)
    requests = requests_of(12, [None])
    answers = answer_all(engine, requests)
    check(model, requests, answers)
    assert engine.stats()["tokens"] == sum(len(answer.token_ids) for answer in answers)
    decoder = engine._policies.base.decoder
    assert decoder._pool.used == 0
    assert sorted(decoder._free) == list(range(5))


def test_every_row_has_its_own_adapter_and_more_may_come(model: Any, adapters: list[str | None]):
    engine = make_engine("paged", model)
    alone = {folder: with_adapter(model, folder) for folder in adapters}
    for some in (adapters[:2], adapters[1:2], adapters):  # some without, all alike, more and larger
        requests = requests_of(8, some, longest=40)
        check(alone, requests, answer_all(engine, requests))


def test_unused_adapter_slot_is_reused(model: Any, tmp_path: Path):
    engine = make_engine("paged", model)
    bank = engine._policies.base.decoder.fused.bank
    for seed in range(3):
        folder = save_adapter(tmp_path / str(seed), model, seed)
        requests = requests_of(2, [folder], longest=20)
        check({folder: with_adapter(model, folder)}, requests, answer_all(engine, requests))
    assert len(bank._slots) == 2


def test_equal_prompts_are_read_once(model: Any):
    engine = make_engine("paged", model)
    for length in (PAGE - 1, PAGE, PAGE + 1):
        prompt = tuple(number % 256 for number in range(length))
        requests = [(prompt, Sampling(1.0, 1.0, 6, seed=n), None) for n in range(6)]

        async def apply_together(requests: list[Any] = requests) -> list[Completion]:
            return await asyncio.gather(*(engine.generate(*request) for request in requests))

        answers = asyncio.run(apply_together())
        assert len({answer.token_ids for answer in answers}) > 3
        check(model, requests, answers)


def test_forced_tokens_are_returned(model: Any):
    engine = make_engine("paged", model)
    sampling = Sampling(1.0, 1.0, forced=(5, 6, 7))
    (answer,) = answer_all(engine, [((1, 2, 3), sampling, None)])
    assert answer.token_ids == (5, 6, 7)
    check(model, [((1, 2, 3), sampling, None)], [answer])


WIDE = SMALL | {"hidden_size": 64, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=True)),
        (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=None)),
        (Qwen2ForCausalLM, Qwen2Config(**{k: v for k, v in WIDE.items() if k != "head_dim"})),
    ],
)
def test_models_of_the_usual_shape_are_paged(kind: Any, config: Any):
    torch.manual_seed(0)
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    requests = requests_of(6, [None], longest=80)
    check(model, requests, answer_all(make_engine("paged", model), requests))


def test_models_of_another_shape_are_left_to_their_own_forward():
    config = Gemma2Config(**SMALL, sliding_window=6)
    assert fuse_model(Gemma2ForCausalLM(config).eval(), LENGTH, plain_kernels) is None
    windowed = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=16)).eval()
    assert fuse_model(windowed, LENGTH, plain_kernels) is None


def test_the_models_own_weights_stay_what_they_are(model: Any, adapters: list[str | None]):
    engine = make_engine("paged", model)
    answer_all(engine, requests_of(4, adapters, longest=10))
    own = engine._policies.base.decoder.model.cpu().state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in model.state_dict().items())


def test_shared_pages_are_freed_by_their_last_user():
    pool = PagePool(1, 1, 2, torch.float32, torch.device("cpu"))
    page = pool.take()
    pool.page(page).fill_(3.0)
    shared, copied = pool.share(page), pool.copy(page)
    assert (shared, pool.used) == (page, 2)
    assert pool.page(copied).eq(3.0).all()
    pool.give_back([page, copied])
    assert pool.used == 1
    pool.give_back([page])
    assert pool.used == 0
    assert len({pool.take() for _ in range(300)}) == 300
