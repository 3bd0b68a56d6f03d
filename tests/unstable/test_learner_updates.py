"""What the learner does with a batch."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import ENV, assert_close, make_game

from unstable.algorithms import A2C, GRPO, Reinforce
from unstable.buffer import StepBuffer
from unstable.core import BaseAlgo, Step
from unstable.learners.standard_learner import NonFiniteError, StandardLearner
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker

LORA = {"lora_rank": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def filled(games: int = 12, *, size: int = 1000, **options: Any) -> StepBuffer:
    buffer = StepBuffer(size, **options)
    for seed in range(games):
        buffer.add_trajectory(make_game(seed, group=str(seed // 4)), 0, ENV)
    return buffer


def learner(folder: str, tmp_path: Path, buffer: Any, **options: Any) -> StandardLearner:
    chosen: dict[str, Any] = {
        "model_pool": None, "algorithm": Reinforce(), "batch_size": 16, "max_generation_len": 8,
        "learning_rate": 1e-2, "lora_cfg": LORA, "ckpt_root": tmp_path / "checkpoints",
        "device": "cpu",
        **options,
    }  # fmt: skip
    return StandardLearner(folder, buffer, **chosen)


def weights(one: StandardLearner) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in one.model.named_parameters() if p.requires_grad}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


class Counting(BaseAlgo):
    """An algorithm with nothing but what it must have."""

    def __init__(self, losses: Sequence[float] = ()) -> None:
        self.sizes: list[int] = []
        self.scalings: list[float] = []
        self.losses = iter(losses)

    def prepare_batch(self, steps: Sequence[Step]) -> Sequence[Step]:
        return steps

    def update(self, steps: Sequence[Step], scaling: float = 1.0) -> dict[str, float]:
        self.sizes.append(len(self.prepare_batch(steps)))
        self.scalings.append(scaling)
        loss = next(self.losses, 1.0)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        (sum(p.sum() for p in parameters) * loss / scaling).backward()
        return {"loss": loss}


class AsDocumented(BaseAlgo):
    """Written as version 0.1 has it: text in, a padded batch, `update` called with the steps."""

    def initialize(self, model, tokenizer, device, max_generation_len, max_train_len=None):
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.max_generation_len, self.max_train_len = max_generation_len, max_train_len

    def prepare_batch(self, steps):
        rewards = torch.tensor([step.reward for step in steps], device=self.device)
        texts = [step.obs + step.act for step in steps]
        encoded = self.tokenizer(
            texts, return_tensors="pt", padding=True, truncation=self.max_train_len is not None,
            max_length=self.max_train_len,
        ).to(self.device)  # fmt: skip
        return encoded, rewards, [step.obs for step in steps]

    def update(self, steps, scaling=1.0):
        encoded, rewards, prompts = self.prepare_batch(steps=steps)
        logits = self.model(**encoded).logits[:, :-1].float()
        tokens = encoded.input_ids[:, 1:]
        logp = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        mask = encoded.attention_mask[:, 1:].clone()
        for row, prompt in enumerate(prompts):
            mask[row, : len(self.tokenizer(prompt)["input_ids"]) - 1] = 0
        loss = -(rewards * (logp * mask).sum(1) / self.max_generation_len).mean() / scaling
        loss.backward()
        return {"loss": loss.item(), "num_steps": len(steps), "pct_truncated": 0.0}


def test_documented_algorithm_learns(folder, tmp_path):
    one = learner(
        folder, tmp_path, filled(), algorithm=AsDocumented(), batch_size=6, mini_batch_size=2
    )
    before = weights(one)
    info = one.update_once()
    assert info["num_steps"] == 6
    assert math.isfinite(info["loss"])
    assert info["grad_norm"] > 0
    assert not same(before, weights(one))


# --- one update ---------------------------------------------------------------------------


def test_update_changes_only_the_adapter(folder, tmp_path):
    buffer = filled()
    one = learner(folder, tmp_path, buffer)
    frozen = {n: p.clone() for n, p in one.model.named_parameters() if not p.requires_grad}
    before = weights(one)
    info = one.update_once()
    assert buffer.size() == 48 - 16
    assert not same(weights(one), before)
    for name, parameter in one.model.named_parameters():
        assert name not in frozen or torch.equal(parameter, frozen[name])
    assert (one._step, one._samples_seen) == (1, 16)
    assert info["step"] == 1
    assert info["samples_seen"] == 16
    assert info["lr"] == 1e-2


def test_mini_batch_size_does_not_change_the_update(folder, tmp_path):
    found = []
    for size, room in ((1, 0), (5, 0), (3, 20), (1, 4096)):
        one = learner(folder, tmp_path, filled(), mini_batch_size=size, pack_tokens=room)
        info = one.update_once()
        found.append((info["loss"], info["grad_norm"], weights(one)))
    for loss, norm, tensors in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-6)
        assert norm == pytest.approx(found[0][1], rel=1e-4)
        assert_close(tensors, found[0][2], atol=2e-4, rtol=1e-3)


def test_the_rest_of_a_batch_is_not_dropped(folder, tmp_path):
    algorithm = Counting()
    one = learner(folder, tmp_path, filled(), algorithm=algorithm, batch_size=10, mini_batch_size=4)
    info = one.update_once()
    assert algorithm.sizes == [4, 4, 2]
    assert algorithm.scalings == [2.5, 2.5, 5.0]
    assert info["loss"] == pytest.approx(1.0)


def test_the_norm_that_is_logged_is_that_before_clipping(folder, tmp_path):
    one = learner(folder, tmp_path, filled(), algorithm=Counting(), grad_clip=0.001)
    count = sum(tensor.numel() for tensor in weights(one).values())
    assert one.update_once()["grad_norm"] == pytest.approx(math.sqrt(count), rel=1e-4)
    gradients = [p.grad for p in one.model.parameters() if p.grad is not None]
    clipped = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert clipped.item() == pytest.approx(0.001, rel=1e-3)


def test_trained_weights_are_float32(folder, tmp_path):
    one = learner(folder, tmp_path, filled(), dtype="bfloat16")
    one.update_once()
    types = {(p.requires_grad, p.dtype) for p in one.model.parameters()}
    assert types == {(True, torch.float32), (False, torch.bfloat16)}
    state = [v for entry in one.optimizer.state.values() for v in entry.values()]
    assert {tensor.dtype for tensor in state} == {torch.float32}


def test_all_of_the_model_can_be_trained(folder, tmp_path):
    one = learner(folder, tmp_path, filled(), full_parameters=True, lora_cfg=None)
    before = weights(one)
    one.update_once()
    moved = [name for name, tensor in weights(one).items() if not torch.equal(tensor, before[name])]
    assert len(moved) == len(before)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path / "checkpoints" / "iteration-1"
    again: Any = AutoModelForCausalLM.from_pretrained(path)
    tokens = torch.tensor([[3, 4, 5]])
    one.model.eval()
    torch.testing.assert_close(again(tokens).logits, one.model(tokens).logits)
    assert AutoTokenizer.from_pretrained(path).eos_token == "<end>"


def test_steps_per_batch_and_epochs_repeat_steps(folder, tmp_path):
    algorithm = Counting()
    one = learner(
        folder, tmp_path, filled(), algorithm=algorithm, mini_batch_size=100, steps_per_batch=3,
        epochs=2,
    )  # fmt: skip
    one.update_once()
    assert algorithm.sizes == [6, 5, 5] * 2
    assert one._step == 1
    assert {int(entry["step"]) for entry in one.optimizer.state.values()} == {6}


def test_the_learning_rate_follows_its_schedule(folder, tmp_path):
    one = learner(
        folder, tmp_path, filled(40), lr_schedule="linear", lr_total=4, lr_floor=0.5, lr_warmup=2
    )
    rates = [one.update_once()["lr"] for _ in range(5)]
    assert rates == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2, 0.75e-2, 0.5e-2])
    with pytest.raises(ValueError, match="needs lr_total"):
        learner(folder, tmp_path, None, lr_schedule="cosine")
    with pytest.raises(ValueError, match="no lr_schedule 'step'"):
        learner(folder, tmp_path, None, lr_schedule="step")


# --- what it refuses ----------------------------------------------------------------------


def test_stale_steps_are_dropped_and_counted(folder, tmp_path):
    buffer = StepBuffer(1000)
    for seed, version in enumerate((0, 1, 2, 3)):
        buffer.add_trajectory(make_game(seed, version=version), 0, ENV)
    one = learner(folder, tmp_path, buffer, max_staleness=1, batch_size=16)
    one._step = 3
    info = one.update_once()
    assert info["num_steps"] == 8
    assert info["stale_dropped"] == 8
    buffer.add_trajectory(make_game(9, version=0), 0, ENV)
    with pytest.raises(ValueError, match="max_staleness=1"):
        one.update_once(4)


def test_non_finite_loss_skips_the_step(folder, tmp_path, caplog):
    algorithm = Counting([1.0, math.nan])
    one = learner(folder, tmp_path, filled(), algorithm=algorithm, mini_batch_size=8)
    before = weights(one)
    info = one.update_once()
    assert info["skipped"] == 1.0
    assert same(weights(one), before)
    assert "losses are not finite" in caplog.text
    assert f"{ENV} game " in caplog.text
    assert one.update_once(8)["skipped"] == 0.0
    assert not same(weights(one), before)
    algorithm.losses = iter([math.inf] * 9)
    one.update_once(8)
    one.update_once(8)
    with pytest.raises(NonFiniteError, match=r"update 5: losses .* 3 times in a row"):
        one.update_once(8)


def test_batches_keep_games_and_groups_whole(folder, tmp_path):
    with pytest.raises(ValueError, match="buffer_strategy='episodes'"):
        learner(folder, tmp_path, filled(), algorithm=A2C()).update_once()
    kept = filled(buffer_strategy="episodes")
    assert learner(folder, tmp_path, kept, algorithm=A2C()).update_once()["num_steps"] == 16
    with pytest.raises(ValueError, match="buffer_strategy='groups'"):
        learner(folder, tmp_path, kept, algorithm=GRPO()).update_once()
    kept = filled(buffer_strategy="groups", group_size=4)
    assert learner(folder, tmp_path, kept, algorithm=GRPO()).update_once()["num_steps"] == 16


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lora_cfg": {"rank": 3}}, "lora_cfg has no rank; there are lora_rank"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"initial_lora_path": "/no/where"}, "initial_lora_path: no folder /no/where"),
        ({"full_parameters": True}, "no lora_cfg"),
        ({"use_trainer_cache": True, "gradient_checkpointing": True}, "choose one"),
    ],
)
def test_impossible_settings_are_refused(folder, tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        learner(folder, tmp_path, None, **options)


def test_memory_options_change_no_result(folder, tmp_path):
    found = []
    for options in (
        {}, {"activation_checkpointing": True, "gradient_checkpointing": True},
        {"use_trainer_cache": True},
    ):  # fmt: skip
        one = learner(folder, tmp_path, filled(), **options)
        one.update_once()
        found.append(weights(one))
    for other in found[1:]:
        assert_close(other, found[0], atol=1e-5, rtol=1e-4)


# --- the loop -----------------------------------------------------------------------------


def test_train_makes_n_updates_and_stops_the_buffer(folder, tmp_path):
    buffer = filled(20)
    one = learner(folder, tmp_path, buffer, save_every=2)
    one.train(3)
    assert one._step == 3
    assert one._samples_seen == 48
    assert buffer.stopped()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["iteration-2"]
    one.train(3)
    assert one._step == 3


def test_training_waits_for_more_than_a_batch(folder, tmp_path):
    buffer = filled(5)  # 20 steps: a batch, not one and a half
    one = learner(folder, tmp_path, buffer)
    thread = threading.Thread(target=one.train, args=(1,))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert one._step == 0
    buffer.add_trajectory(make_game(7), 0, ENV)
    thread.join(60)
    assert one._step == 1


def test_too_small_buffer_is_refused(folder, tmp_path):
    buffer = filled(1, size=20)
    one = learner(folder, tmp_path, buffer)
    with pytest.raises(ValueError, match="raise max_buffer_size"):
        one.next_update()
    with pytest.raises(ValueError, match="raise max_buffer_size"):
        one.train(1)
    assert buffer.stopped()
    assert "the learner has failed: ValueError" in buffer.stop_reason()


def test_stopped_buffer_is_used_up_before_error(folder, tmp_path):
    buffer = filled(5)
    buffer.stop("nobody is there to play")
    one = learner(folder, tmp_path, buffer)
    said = r"stopped after 1 updates \(nobody is there to play\): the buffer has 4 of the 16"
    with pytest.raises(RuntimeError, match=said):
        one.train(2)


# --- what it leaves -----------------------------------------------------------------------


def test_checkpoints_are_adapters_that_peft_loads(folder, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    one = learner(folder, tmp_path, filled())
    one.update_once()
    path = tmp_path / "checkpoints" / "iteration-1"
    config = json.loads((path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), str(path))
    tokens = torch.tensor([[3, 4, 5]])
    one.model.eval()
    torch.testing.assert_close(again(tokens).logits, one.model(tokens).logits)
    assert not list(path.parent.glob(".*"))


def test_initial_adapter_is_continued(folder, tmp_path):
    one = learner(folder, tmp_path, filled())
    one.update_once()
    path = str(tmp_path / "checkpoints" / "iteration-1")
    other = learner(folder, tmp_path, filled(), initial_lora_path=path, lora_cfg=None)
    assert same(weights(other), weights(one))
    other.update_once()
    assert not same(weights(other), weights(one))
    with pytest.raises(ValueError, match="has rank 4, lora_cfg says 8"):
        learner(folder, tmp_path, None, initial_lora_path=path, lora_cfg={"lora_rank": 8})


def test_update_reports_to_pool_and_tracker(folder, tmp_path):
    tracker = Tracker("run", run_dir=tmp_path / "run", writers=("jsonl",))
    pool = ModelPool("mirror", 2, tracker)
    pool.add_checkpoint(None, -1)
    one = learner(folder, tmp_path, filled(), model_pool=pool, tracker=tracker, ckpt_root=None)
    one.update_once()
    path = tmp_path / "run" / "checkpoints" / "iteration-1"
    assert pool.ckpt_path("ckpt-1") == (str(path), "checkpoint")
    assert pool.current_uid() == "ckpt-1"
    files = pool.adapter_files(str(path))
    assert files == {
        name: (path / name).read_bytes()
        for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    tracker.close()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert any("learner/grad_norm" in line for line in lines)
