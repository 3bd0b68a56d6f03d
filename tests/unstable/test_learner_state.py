"""A learner's state is resumed bit for bit, and its settings fit into the memory there is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import ENV, make_game, make_model
from safetensors.torch import load_file
from transformers import Qwen3Config

from unstable.algorithms import A2C, PPO, Reinforce
from unstable.buffer import StepBuffer
from unstable.learners.checkpoints import save_checkpoint
from unstable.learners.policy import (
    LOGITS_BYTES,
    TRAINED_BYTES,
    MemoryPlan,
    Sizes,
    bytes_per_token,
    plan_memory,
)
from unstable.learners.standard_learner import StandardLearner

LORA = {"lora_rank": 4, "lora_dropout": 0.3, "target_modules": ["q_proj", "v_proj", "up_proj"]}


def make(folder: str, tmp_path: Path, algorithm: Any, **options: Any) -> StandardLearner:
    buffer = StepBuffer(10_000, buffer_strategy="episodes", seed=5)
    for seed in range(60):
        buffer.add_trajectory(make_game(seed), 0, ENV)
    chosen: dict[str, Any] = {
        "lora_cfg": LORA, "batch_size": 32, "learning_rate": 1e-2, "max_generation_len": 8,
        "steps_per_batch": 2, "epochs": 2, "lr_schedule": "cosine", "lr_total": 6, "seed": 3,
        "ckpt_root": tmp_path / "checkpoints", "model_pool": None, **options,
    }  # fmt: skip
    return StandardLearner(folder, buffer, algorithm=algorithm, **chosen)


def everything(one: StandardLearner, tmp_path: Path) -> dict[str, torch.Tensor]:
    one.save_state(tmp_path / "compared")
    return load_file(tmp_path / "compared" / "learner.safetensors")


@pytest.mark.parametrize("make_algorithm", [PPO, A2C], ids=["ppo", "a2c"])
def test_restored_learner_continues_identically(folder, tmp_path, make_algorithm):
    whole = make(folder, tmp_path, make_algorithm())
    numbers = [whole.update_once() for _ in range(4)]

    first = make(folder, tmp_path, make_algorithm())
    found = [first.update_once() for _ in range(2)]
    first.save_state(tmp_path / "state")
    torch.manual_seed(99)  # what else happened in the process must not matter
    second = make(folder, tmp_path, make_algorithm(), seed=77)
    second.step_buffer.load_state_dict(first.step_buffer.state_dict())
    second.load_state(tmp_path / "state")
    assert (second._step, second._samples_seen) == (2, first._samples_seen)
    found += [second.update_once() for _ in range(2)]

    assert found == numbers
    one, other = everything(whole, tmp_path), everything(second, tmp_path)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(name.startswith("optimizer/exp_avg/") for name in one)
    heads = [name for name in one if "value_head" in name]
    assert bool(heads) == (make_algorithm is A2C)


def test_dropout_is_active_only_in_training(folder, tmp_path):
    one = make(folder, tmp_path, PPO())
    one.update_once()
    algorithm: Any = one.algorithm
    samples = algorithm.prepare_steps(one.step_buffer.get_batch(16))
    assert algorithm.logprobs(samples) == algorithm.logprobs(samples)
    losses = []
    for _ in range(2):
        one.model.train()
        losses.append(algorithm.update(samples)["loss"])
    assert losses[0] != losses[1]


def test_state_of_another_model_is_refused(folder, tmp_path):
    one = make(folder, tmp_path, PPO())
    one.update_once()
    one.save_state(tmp_path / "state")
    other = make(folder, tmp_path, Reinforce())
    with pytest.raises(ValueError, match="the state is of PPO, not Reinforce"):
        other.load_state(tmp_path / "state")
    smaller = make(folder, tmp_path, PPO(), lora_cfg={"lora_rank": 2})
    with pytest.raises(ValueError, match=r"of another model: .* was lora_cfg or model_name"):
        smaller.load_state(tmp_path / "state")
    assert smaller._step == 0
    with pytest.raises(ValueError, match="there is no learner's state"):
        one.load_state(tmp_path / "nowhere")
    path = tmp_path / "state" / "learner.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="not a learner's state"):
        one.load_state(tmp_path / "state")


def test_a_checkpoint_is_whole_or_not_there(folder, tmp_path):
    one = make(folder, tmp_path, PPO())
    one.update_once()
    target = tmp_path / "checkpoints" / "iteration-1"
    before = (target / "adapter_model.safetensors").read_bytes()

    class FullDisk:
        def disable_adapter(self) -> None: ...

        def save_pretrained(self, path: str, **_: Any) -> None:
            Path(path).mkdir(exist_ok=True)
            (Path(path) / "adapter_model.safetensors").write_bytes(b"half")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        save_checkpoint(FullDisk(), target)
    assert (target / "adapter_model.safetensors").read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["iteration-1"]
    one.update_once()
    save_checkpoint(one.model, target)  # again, after an interruption
    assert (target / "adapter_model.safetensors").read_bytes() != before
    assert sorted(path.name for path in target.parent.iterdir()) == ["iteration-1", "iteration-2"]


QWEN = Qwen3Config(
    vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960,
)  # fmt: skip
TRAINED = 35_000_000
GIB = 2**30


def plan(gib: float, **asked: Any) -> MemoryPlan:
    return plan_memory(QWEN, gib * GIB, TRAINED, **asked)


def test_plan_uses_more_memory_for_longer_passes() -> None:
    plans = [plan(gib) for gib in (2, 4, 8, 16, 32, 64)]
    work = [one.activation_checkpointing + one.gradient_checkpointing for one in plans]
    assert work == sorted(work, reverse=True)
    assert (work[0], work[-1]) == (2, 0)
    assert all(one.pack_tokens >= 8192 for one in plans[1:])
    assert plans[0].max_train_len is not None
    assert plans[-1].max_train_len is None or plans[-1].max_train_len > plans[0].max_train_len


def test_plan_fits_its_own_estimate() -> None:
    for gib in (4, 8, 16, 32):
        chosen = plan(gib)
        cost = bytes_per_token(
            Sizes.of(QWEN),
            activation_checkpointing=chosen.activation_checkpointing,
            gradient_checkpointing=chosen.gradient_checkpointing,
        )
        assert chosen.pack_tokens * cost + 12 * TRAINED + GIB <= gib * GIB


WEIGHTS_GIB, ADAPTER_PARAMETERS = 3.205, 34_865_152
MEASURED = [
    # gradient checkpointing, tokens of a pass, GiB at the most
    (False, 8_192, 20.47), (False, 16_384, 37.19), (False, 32_768, 69.17), (True, 26_508, 10.36),
    (True, 32_768, 11.23), (True, 65_536, 17.52),
]  # fmt: skip
"""Of Qwen3-1.7B on an H200 (benchmarks/results), LoRA of rank 32 on all linears."""


@pytest.mark.parametrize(("gradient", "tokens", "gib"), MEASURED)
def test_memory_estimate_matches_measurements(gradient: bool, tokens: int, gib: float) -> None:
    cost = bytes_per_token(
        Sizes.of(QWEN), activation_checkpointing=False, gradient_checkpointing=gradient
    )
    always = WEIGHTS_GIB * GIB + (4 + TRAINED_BYTES) * ADAPTER_PARAMETERS + LOGITS_BYTES
    assert (always + tokens * cost) / GIB == pytest.approx(gib, rel=0.05)


def test_plan_keeps_explicit_settings() -> None:
    chosen = plan(
        3, activation_checkpointing=True, gradient_checkpointing=False, max_train_len=77,
        pack_tokens=99,
    )  # fmt: skip
    assert chosen.activation_checkpointing
    assert not chosen.gradient_checkpointing
    assert (chosen.max_train_len, chosen.pack_tokens) == (77, 99)
    assert plan(64, gradient_checkpointing=True).gradient_checkpointing
    assert plan(3, max_train_len=None).max_train_len is None


def test_learner_logs_its_memory_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "unstable.learners.standard_learner"):
        learner = StandardLearner(
            make_model(tmp_path), StepBuffer(64), None, Reinforce(), 4, device="cpu",
            activation_checkpointing="auto", gradient_checkpointing="auto", max_train_len="auto",
        )  # fmt: skip
    assert learner.settings == MemoryPlan(False, False, 4096, None, 4096)
    assert str(learner.settings) in caplog.text
    assert "gradient checkpointing off" in caplog.text
