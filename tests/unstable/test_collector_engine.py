"""The collector with real models: one that has learned nothing, and one behind an endpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from collector_run import Run

from unstable.engines import EngineError
from unstable.tiny.model import byte_tokenizer

ENV = ("TicTacToe-v0-train", 2, "bare")
NAME = "someone/strong"


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


def evaluated(run: Run, games: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The rows, and what it has cost."""

    async def evaluate() -> tuple[list[dict[str, Any]], dict[str, float]]:
        rows = await run.collector.evaluate(games)
        costs = run.collector.stats()["cost_usd"]
        await run.collector.close()
        return rows, costs

    return asyncio.run(evaluate())


def test_collector_keeps_sampled_tokens(tmp_path, tiny):
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


def test_collector_plays_against_models_on_disk(tmp_path, tiny):
    (row,), _ = evaluated(model_run(tmp_path, tiny, evaluation_opponent=str(tiny)), 12)
    assert row["games"] == 12
    assert row["opponent"] == str(tiny)


def test_remote_opponent_gets_rules_and_reports_cost(tmp_path, endpoint):
    run = Run(tmp_path, evaluation_opponent=NAME)
    (row,), costs = evaluated(run, 6)
    assert (row["games"], row["failed"]) == (6, 0)
    assert row["opponent"] == NAME
    for body in endpoint.asked:
        assert body["model"] == NAME
        assert "\\boxed{}" in body["messages"][-1]["content"]
        assert "Available" in body["messages"][-1]["content"]  # TextArena's text, not a short board
        assert body["max_tokens"] == 4096
    assert costs[NAME] == pytest.approx(0.001 * len(endpoint.asked))
    first = [(body["messages"], body["seed"]) for body in endpoint.asked]
    endpoint.asked.clear()
    evaluated(Run(tmp_path / "again", evaluation_opponent=NAME), 6)
    again = [(body["messages"], body["seed"]) for body in endpoint.asked]
    assert sorted(map(str, again)) == sorted(map(str, first))


def test_remote_opponent_without_address_is_refused(tmp_path, monkeypatch):
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    run = Run(tmp_path, evaluation_opponent=NAME)
    with pytest.raises(EngineError, match=f"{NAME}.*OPENROUTER_API_KEY"):
        run.play(1)
