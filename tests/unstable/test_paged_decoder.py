"""Pages, fused layers and steps read late give what the model gives, one request at a time."""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import plain_kernels
import pytest
import torch
from small_qwen import EOS, logprobs_of, save_adapter, small_qwen, with_adapter
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
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


def paged_engine(model: Any, **options: Any) -> TransformersEngine:
    """On a GPU it is the engine's own choice; here, with the reference of its kernels."""
    engine = TransformersEngine(deepcopy(model), max_model_len=LENGTH, **options)
    old = engine._policies.base.decoder
    if not CUDA:
        copy = deepcopy(model)
        network = fuse_model(copy, LENGTH, plain_kernels)
        assert network is not None
        engine._policies.base.decoder = PagedDecoder(
            copy, network, engine.max_parallel_seq, LENGTH, engine.stop
        )
    else:
        assert isinstance(old, PagedDecoder)
    return engine


def answer_all(engine: TransformersEngine, requests: list[Any]) -> list[Any]:
    async def one(number: int, request: Any) -> Completion:
        for _ in range(number % 5):
            await asyncio.sleep(0)
        return await engine.generate(*request)

    async def everybody() -> list[Any]:
        tasks = [one(number, request) for number, request in enumerate(requests)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(everybody())


def check(models: dict[str | None, Any], requests: list[Any], answers: list[Any]) -> None:
    for (prompt, _, folder), answer in zip(requests, answers, strict=True):
        expected = logprobs_of(models[folder], prompt, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=2e-4 if CUDA else 1e-5)


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


@pytest.fixture(scope="module")
def model() -> Any:
    return small_qwen(max_position_embeddings=LENGTH)


@pytest.fixture(scope="module")
def adapters(model: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str | None]:
    root = tmp_path_factory.mktemp("adapters")
    changes: list[dict[str, Any]] = [
        {},
        {"r": 6, "target_modules": ["k_proj", "gate_proj", "up_proj"]},
        {"r": 20, "target_modules": ["q_proj", "lm_head"]},
    ]
    return [None, *(save_adapter(root / str(i), model, i, **c) for i, c in enumerate(changes))]


def test_answers_of_one_token_come_from_the_prompt_alone(model: Any):
    engine = paged_engine(model, max_parallel_seq=5)
    requests = [
        (prompt, Sampling(1.0, 1.0, 1, seed=number), None)
        for number, (prompt, _, _) in enumerate(requests_of(9, [None]))
    ]
    answers = answer_all(engine, requests)
    assert [len(answer.token_ids) for answer in answers] == [1] * 9
    check({None: model}, requests, answers)


def test_rows_of_any_length_have_their_own_pages(model: Any):
    engine = paged_engine(model, max_parallel_seq=5)
    requests = requests_of(12, [None])
    answers = answer_all(engine, requests)
    check({None: model}, requests, answers)
    assert engine.stats()["tokens"] == sum(len(answer.token_ids) for answer in answers)
    decoder = engine._policies.base.decoder
    assert decoder._pool.used == 0
    assert sorted(decoder._free) == list(range(5))


def test_every_row_has_its_own_adapter_and_more_may_come(model: Any, adapters: list[str | None]):
    engine = paged_engine(model)
    alone = {folder: with_adapter(model, folder) for folder in adapters}
    for some in (adapters[:2], adapters[1:2], adapters):  # some without, all alike, more and larger
        requests = requests_of(8, some, longest=40)
        check(alone, requests, answer_all(engine, requests))


def test_an_adapter_takes_the_place_of_one_that_is_used_no_more(model: Any, tmp_path: Path):
    engine = paged_engine(model)
    bank = engine._policies.base.decoder.fused.bank
    for seed in range(3):
        folder = save_adapter(tmp_path / str(seed), model, seed)
        requests = requests_of(2, [folder], longest=20)
        check({folder: with_adapter(model, folder)}, requests, answer_all(engine, requests))
    assert len(bank._slots) == 2


def test_a_prompt_that_many_ask_is_read_once_and_answered_for_each(model: Any):
    engine = paged_engine(model)
    for length in (PAGE - 1, PAGE, PAGE + 1):
        prompt = tuple(number % 256 for number in range(length))
        requests = [(prompt, Sampling(1.0, 1.0, 6, seed=n), None) for n in range(6)]

        async def together(requests: list[Any] = requests) -> list[Completion]:
            return await asyncio.gather(*(engine.generate(*request) for request in requests))

        answers = asyncio.run(together())
        assert len({answer.token_ids for answer in answers}) > 3
        check({None: model}, requests, answers)


def test_a_row_that_a_stop_token_ends_has_no_token_behind_it(model: Any):
    stopping = deepcopy(model)
    stopping.generation_config.eos_token_id = list(range(0, 256, 3))
    engine = paged_engine(stopping)
    requests = [
        (p, Sampling(1.0, 1.0, 50, seed=1), None) for p, _, _ in requests_of(6, [None], longest=70)
    ]
    for answer in answer_all(engine, requests):
        assert answer.finish_reason == "stop"
        assert answer.token_ids[-1] in (*range(0, 256, 3), EOS)
        assert all(token % 3 and token != EOS for token in answer.token_ids[:-1])


def test_forced_tokens_are_taken_as_they_are(model: Any):
    engine = paged_engine(model)
    sampling = Sampling(1.0, 1.0, forced=(5, 6, 7))
    (answer,) = answer_all(engine, [((1, 2, 3), sampling, None)])
    assert answer.token_ids == (5, 6, 7)
    check({None: model}, [((1, 2, 3), sampling, None)], [answer])


def test_the_same_seed_draws_the_same_whoever_else_is_served(model: Any):
    requests = requests_of(6, [None], longest=30)
    together = answer_all(paged_engine(model), requests)
    alone = paged_engine(model)
    for request, answer in zip(requests, together, strict=True):
        (same,) = answer_all(alone, [request])
        assert same.token_ids == answer.token_ids


def test_a_row_that_breaks_down_leaves_nothing_behind(model: Any, tmp_path: Path):
    engine = paged_engine(model)
    sampling, short = Sampling(1.0, 1.0, 4, seed=0), (2,) * 5
    (alone,) = answer_all(engine, [(short, sampling, None)])
    path = save_adapter(tmp_path / "huge", model, 0)
    adapted = with_adapter(model, path)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(1e38)
    adapted.save_pretrained(path)
    for requests in (
        [((1,) * 40, sampling, path), (short, sampling, None)],
        [(short, sampling, None), ((3,) * 40, sampling, path)],
    ):
        for (_, _, folder), answer in zip(requests, answer_all(engine, requests), strict=True):
            if folder is None:
                assert answer.token_ids == alone.token_ids
            else:
                assert isinstance(answer, EngineError)


SMALL: dict[str, Any] = {
    "vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2,
    "max_position_embeddings": LENGTH, "eos_token_id": EOS, "pad_token_id": 257,
}  # fmt: skip
WIDE = SMALL | {"hidden_size": 64, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=True)),
        (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=None)),
        (Qwen2ForCausalLM, Qwen2Config(**{k: v for k, v in WIDE.items() if k != "head_dim"})),
    ],
)
def test_other_models_of_the_usual_shape_run_this_way(kind: Any, config: Any):
    torch.manual_seed(0)
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    requests = requests_of(6, [None], longest=80)
    check({None: model}, requests, answer_all(paged_engine(model), requests))


def test_models_of_another_shape_are_left_to_their_own_forward():
    config = Gemma2Config(**SMALL, sliding_window=6)
    assert fuse_model(Gemma2ForCausalLM(config).eval(), LENGTH, plain_kernels) is None
    windowed = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=16)).eval()
    assert fuse_model(windowed, LENGTH, plain_kernels) is None


def test_the_models_own_weights_stay_what_they_are(model: Any, adapters: list[str | None]):
    engine = paged_engine(model)
    answer_all(engine, requests_of(4, adapters, longest=10))
    own = engine._policies.base.decoder.model.cpu().state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in model.state_dict().items())


def test_pages_go_back_when_their_last_user_gives_them_back():
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
