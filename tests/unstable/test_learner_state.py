"""A learner that was stopped goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import ENV, make_game
from safetensors.torch import load_file

from unstable.algorithms import A2C, PPO, Reinforce
from unstable.buffer import StepBuffer
from unstable.learners.checkpoints import save_checkpoint
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
def test_two_updates_a_stop_and_two_more_are_four(folder, tmp_path, make_algorithm):
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


def test_dropout_is_on_while_learning_and_off_while_looking(folder, tmp_path):
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


def test_a_state_of_something_else_is_refused_and_changes_nothing(folder, tmp_path):
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
