"""An opponent behind an endpoint: a real HTTP server on loopback, asked by the real client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from collector_run import ENV, Run

from unstable.engines.protocol import EngineError

NAME = "someone/strong"


def evaluated(run: Run, games: int) -> list[dict[str, Any]]:
    async def evaluate() -> list[dict[str, Any]]:
        rows = await run.collector.evaluate(games)
        run.costs = run.collector.stats()["cost_usd"]  # type: ignore[attr-defined]
        await run.collector.close()
        return rows

    return asyncio.run(evaluate())


def test_it_is_asked_with_the_rules_and_its_cost_is_known(tmp_path, endpoint):
    run = Run(tmp_path, evaluation_opponent=NAME)
    (row,) = evaluated(run, 6)
    assert (row["games"], row["failed"]) == (6, 0)
    assert row["opponent"] == NAME
    for body in endpoint.asked:
        assert body["model"] == NAME
        assert "\\boxed{}" in body["messages"][-1]["content"]
        assert "Available" in body["messages"][-1]["content"]  # TextArena's text, not a short board
        assert body["max_tokens"] == 4096
    assert run.costs[NAME] == pytest.approx(0.001 * len(endpoint.asked))  # type: ignore[attr-defined]
    first = [(body["messages"], body["seed"]) for body in endpoint.asked]
    endpoint.asked.clear()
    evaluated(Run(tmp_path / "again", evaluation_opponent=NAME), 6)
    again = [(body["messages"], body["seed"]) for body in endpoint.asked]
    assert sorted(map(str, again)) == sorted(map(str, first))


def test_one_that_is_down_fails_its_games_only(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    run = Run(tmp_path, evaluation_opponent=NAME)
    (row,) = evaluated(run, 40)
    assert row["games"] == 0
    assert row["failed"] == 20
    assert NAME in row["error"]
    assert run.play(5)["games"] == 5


def test_without_an_address_it_is_said_at_the_beginning(tmp_path, monkeypatch):
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    run = Run(tmp_path, evaluation_opponent=NAME, training_envs=[ENV])
    with pytest.raises(EngineError, match=f"{NAME}.*OPENROUTER_API_KEY"):
        run.play(1)
