"""What a learner chooses from the memory there is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from learner_parts import make_model
from transformers import Qwen3Config

from unstable.algorithms import Reinforce
from unstable.buffer import StepBuffer
from unstable.learners.policy import (
    LOGITS_BYTES,
    TRAINED_BYTES,
    MemoryPlan,
    Sizes,
    bytes_per_token,
    plan_memory,
)
from unstable.learners.standard_learner import StandardLearner

QWEN = Qwen3Config(
    vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960,
)  # fmt: skip
TRAINED = 35_000_000
GIB = 2**30


def plan(gib: float, **asked: Any) -> MemoryPlan:
    return plan_memory(QWEN, gib * GIB, TRAINED, **asked)


def test_more_memory_means_longer_passes_and_less_computed_twice() -> None:
    plans = [plan(gib) for gib in (2, 4, 8, 16, 32, 64)]
    work = [one.activation_checkpointing + one.gradient_checkpointing for one in plans]
    assert work == sorted(work, reverse=True)
    assert (work[0], work[-1]) == (2, 0)
    assert all(one.pack_tokens >= 8192 for one in plans[1:])
    assert plans[0].max_train_len is not None
    assert plans[-1].max_train_len is None or plans[-1].max_train_len > plans[0].max_train_len


def test_what_is_chosen_fits_by_its_own_count() -> None:
    for gib in (4, 8, 16, 32):
        chosen = plan(gib)
        cost = bytes_per_token(
            Sizes.of(QWEN),
            activation_checkpointing=chosen.activation_checkpointing,
            gradient_checkpointing=chosen.gradient_checkpointing,
        )
        assert chosen.pack_tokens * cost + 12 * TRAINED + GIB <= gib * GIB


WEIGHTS_GIB, LORA = 3.205, 34_865_152
MEASURED = [
    # gradient checkpointing, tokens of a pass, GiB at the most
    (False, 8_192, 20.47), (False, 16_384, 37.19), (False, 32_768, 69.17), (True, 26_508, 10.36),
    (True, 32_768, 11.23), (True, 65_536, 17.52),
]  # fmt: skip
"""Of Qwen3-1.7B on an H200 (benchmarks/results), LoRA of rank 32 on all linears."""


@pytest.mark.parametrize(("gradient", "tokens", "gib"), MEASURED)
def test_the_count_is_what_was_measured(gradient: bool, tokens: int, gib: float) -> None:
    cost = bytes_per_token(
        Sizes.of(QWEN), activation_checkpointing=False, gradient_checkpointing=gradient
    )
    always = WEIGHTS_GIB * GIB + (4 + TRAINED_BYTES) * LORA + LOGITS_BYTES
    assert (always + tokens * cost) / GIB == pytest.approx(gib, rel=0.05)


def test_what_is_set_stays_as_it_is_set() -> None:
    chosen = plan(
        3, activation_checkpointing=True, gradient_checkpointing=False, max_train_len=77,
        pack_tokens=99,
    )  # fmt: skip
    assert chosen.activation_checkpointing
    assert not chosen.gradient_checkpointing
    assert (chosen.max_train_len, chosen.pack_tokens) == (77, 99)
    assert plan(64, gradient_checkpointing=True).gradient_checkpointing
    assert plan(3, max_train_len=None).max_train_len is None


def test_a_learner_says_what_it_chose(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "unstable.learners.standard_learner"):
        learner = StandardLearner(
            make_model(tmp_path), StepBuffer(64), None, Reinforce(), 4, device="cpu",
            activation_checkpointing="auto", gradient_checkpointing="auto", max_train_len="auto",
        )  # fmt: skip
    assert learner.settings == MemoryPlan(False, False, 4096, None, 4096)
    assert str(learner.settings) in caplog.text
    assert "gradient checkpointing off" in caplog.text
