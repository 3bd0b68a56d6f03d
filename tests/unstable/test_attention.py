"""Attention of sequences of any length, and recorded steps, give what the model gives."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_qwen import logprobs_of, save_adapter, small_qwen, with_adapter
from torch import Tensor
from torch.nn import functional

from unstable.engines import Completion, Sampling
from unstable.engines import attention as varlen
from unstable.engines.decoder import GraphReplay, _Recorded, round_up_size
from unstable.engines.transformers_engine import TransformersEngine

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    varlen._shares_heads.cache_clear()
    yield
    varlen._shares_heads.cache_clear()


def attend(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, *_: int) -> Tensor:
    """What the GPU's kernel does, each query head's gradients in bfloat16 as it writes them."""
    shared = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
    parts = []
    for begin, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        rows = (x[begin:end].transpose(0, 1).float() for x in (query, key, value))
        out = functional.scaled_dot_product_attention(*rows, is_causal=True)
        parts.append(out.transpose(0, 1).to(query.dtype))
    return torch.cat(parts)


@pytest.mark.parametrize("learns", [False, True])
def test_kernel_with_rounding_errors_shares_heads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, learns: bool
) -> None:
    monkeypatch.setattr(varlen, "_attend", attend)
    assert varlen._shares_heads(CPU, learns)
    assert not caplog.records


def test_wrong_kernel_gradient_disables_head_sharing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(
        query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, shared: int
    ) -> Tensor:
        if shared > 1:  # the value is right, and half of its gradient is missing
            key, value = (x.detach() / 2 + x / 2 for x in (key, value))
        return attend(query, key, value, ends, longest, shared)

    monkeypatch.setattr(varlen, "_attend", wrong)
    with caplog.at_level(logging.WARNING):
        assert varlen._shares_heads(CPU, False)
        assert not caplog.records
        assert not any(varlen._shares_heads(CPU, True) for _ in range(3))
    (record,) = caplog.records
    assert "the keys' gradient is 0.5 off" in record.getMessage()


def test_kernel_error_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(
        query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, shared: int
    ) -> Tensor:
        if shared > 1:
            raise ValueError("heads must be as many")
        return attend(query, key, value, ends, longest, shared)

    monkeypatch.setattr(varlen, "_attend", refuse)
    assert not varlen._shares_heads(CPU, True)
    assert "ValueError: heads must be as many" in caplog.text


class Again:
    """A graph's place where there is no GPU: it runs the step once more, on the same memory."""

    def __init__(self, replay: GraphReplay, rows: int, columns: int, others: Tensor | None) -> None:
        self.replay_of, self.rows, self.columns = replay, rows, columns
        self.others, self.logits = others, torch.zeros(0)
        self.adapters = replay._mixture.adapters

    def replay(self) -> None:
        replay = self.replay_of
        assert replay._mixture.adapters is self.adapters, "a graph knows only what it was made with"
        replay._mixture.tokens = replay._mixture.outputs = self.others
        found = replay._run(replay._inputs[:, : self.rows], self.columns)
        self.logits.resize_(found.shape).copy_(found)


class WithoutGraphs(GraphReplay):
    recorded, dropped = 0, 0

    def _record(self, rows: int, columns: int, others: Tensor | None) -> _Recorded:
        type(self).recorded += 1
        fixed = None if others is None else others.clone()
        again = Again(self, rows, columns, fixed)
        return _Recorded(again, fixed, again.logits)

    def forget(self) -> None:
        type(self).dropped += bool(self._recorded)
        super().forget()


def answers(engine: TransformersEngine, requests: list[Any]) -> list[Completion]:
    async def one(number: int, request: Any) -> Completion:
        for _ in range(number % 7):
            await asyncio.sleep(0)
        return await engine.generate(*request)

    async def everybody() -> list[Completion]:
        return await asyncio.gather(*(one(n, request) for n, request in enumerate(requests)))

    return asyncio.run(everybody())


def check(engine: TransformersEngine, model: Any, root: Path, tolerance: float) -> None:
    rng = random.Random(0)
    folders = [None, *(save_adapter(root / str(i), model, i) for i in range(3))]
    alone = {folder: with_adapter(model, folder) for folder in folders}
    for chosen in (folders[:1], folders[1:2], folders):  # no adapter, one for all, several
        requests = [
            (
                tuple(rng.randrange(256) for _ in range(rng.randint(1, 150))),
                Sampling(1.0, 1.0, rng.randint(2, 40), seed=number),
                chosen[number % len(chosen)],
            )
            for number in range(40)
        ]
        for (prompt, _, folder), answer in zip(requests, answers(engine, requests), strict=True):
            expected = logprobs_of(alone[folder], prompt, answer.token_ids)
            assert answer.logprobs == pytest.approx(expected, abs=tolerance)


def test_idle_rows_and_columns_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = small_qwen(max_position_embeddings=512)
    engine = TransformersEngine(deepcopy(model), device="cpu", max_parallel_seq=11)
    decoder = engine._policies.base.decoder
    decoder._replay = WithoutGraphs(decoder._decode_step, decoder._mixture, 11, torch.device("cpu"))
    check(engine, model, tmp_path, 1e-5)
    assert WithoutGraphs.recorded > 3
    assert WithoutGraphs.dropped > 1  # when the cache grew, and when adapters came


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")
def test_recorded_steps_give_what_the_model_gives(tmp_path: Path):
    model = small_qwen(max_position_embeddings=512)
    engine = TransformersEngine(deepcopy(model), device="cuda", max_parallel_seq=11)
    check(engine, model, tmp_path, 2e-4)


@pytest.mark.parametrize("wanted", [*range(1, 70), 500, 1023, 1025])
def test_rounded_sizes_waste_at_most_a_third(wanted: int):
    size = round_up_size(wanted, 8)
    assert wanted <= size <= max(8, 1.5 * wanted)
    assert size in {base * power for base in (8, 12) for power in (1, 2, 4, 8, 16, 32, 64, 128)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention is a GPU's")
def test_ragged_prompts_are_attended_to_as_in_blocks(monkeypatch: pytest.MonkeyPatch):
    model = small_qwen(max_position_embeddings=512, head_dim=32).bfloat16().cuda()
    rng = random.Random(0)
    requests = [
        (tuple(rng.randrange(256) for _ in range(length)), Sampling(0.0, 1.0, 1), None)
        for length in (1, 2, 150, 90, 33, 150)
    ]
    ragged = answers(TransformersEngine(deepcopy(model), device="cuda"), requests)
    monkeypatch.setattr("unstable.engines.attention._is_flash", lambda *_: False)
    blocks = answers(TransformersEngine(deepcopy(model), device="cuda"), requests)
    for one, other in zip(ragged, blocks, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=0.05)
