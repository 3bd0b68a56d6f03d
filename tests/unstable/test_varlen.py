"""Whether heads share keys and values is tried before it is done."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unstable.engines import attention as varlen

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
def test_a_kernel_that_rounds_as_the_type_does_shares_heads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, learns: bool
) -> None:
    monkeypatch.setattr(varlen, "_attend", attend)
    assert varlen._shares_heads(CPU, learns)
    assert not caplog.records


def test_a_wrong_gradient_costs_the_learner_the_sharing_and_says_so_once(
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


def test_a_kernel_that_refuses_is_quoted(
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
