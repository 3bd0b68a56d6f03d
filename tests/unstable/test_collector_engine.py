"""The collector with a real model behind it: the embedded one, before it has learned anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from collector_run import Run

from unstable.tiny.model import byte_tokenizer, new_model, save_tokenizer

ENV = ("TicTacToe-v0-train", 2, "bare")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = byte_tokenizer()
    new_model(tokenizer, seed=3).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


def model_run(folder: Path, tiny: Path, **options: Any) -> Run:
    config = {"model_name": str(tiny), "temperature": 1.0, "top_p": 1.0, "max_tokens": 6}
    defaults: dict[str, Any] = {
        "actors": None, "vllm_config": config, "training_envs": [ENV], "evaluation_envs": [ENV],
        "action_extraction": "raw",
    }  # fmt: skip
    return Run(folder, **(defaults | options))


def played(run: Run, games: int) -> dict[str, int]:
    async def play() -> dict[str, int]:
        try:
            return await run.collector.play(games, num_workers=16)
        finally:
            await run.collector.close()

    return asyncio.run(play())


def test_a_model_plays_and_its_tokens_are_kept_as_sampled(tmp_path, tiny):
    run, again = (model_run(tmp_path / name, tiny) for name in ("one", "two"))
    counts = played(run, 32)
    assert counts["games"] == 32
    tokenizer = byte_tokenizer()
    for step in run.steps():
        assert step.obs.endswith("<|move|>")
        assert list(step.prompt_ids) == tokenizer.encode(step.obs, add_special_tokens=False)
        assert tokenizer.decode(step.completion_ids, skip_special_tokens=True) == step.act
        assert len(step.logprobs) == len(step.completion_ids) <= 6
        assert all(logprob <= 0.0 for logprob in step.logprobs)
    played(again, 32)
    assert again.steps() == run.steps()


def test_other_models_on_disk_sit_opposite(tmp_path, tiny):
    run = model_run(tmp_path, tiny, evaluation_opponent=str(tiny))

    async def evaluate() -> list[dict[str, Any]]:
        rows = await run.collector.evaluate(12)
        await run.collector.close()
        return rows

    (row,) = asyncio.run(evaluate())
    assert row["games"] == 12
    assert row["opponent"] == str(tiny)
