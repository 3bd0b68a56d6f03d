"""A collector with real parts around it, and an actor that answers at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from instant_actor import InstantActor

from unstable.buffer import StepBuffer
from unstable.collector import Collector
from unstable.core import Step
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker

ENV = ("TicTacToe-v0-train", 2, "qwen3-zs")


class Run:
    """Everything in one process."""

    def __init__(
        self, folder: Path, actor: InstantActor | None = None, *, mode: str = "mirror",
        checkpoints: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        self.actor = actor or InstantActor()
        self.tracker = Tracker("run", run_dir=folder, writers=("jsonl",))
        self.pool = ModelPool(mode, 4, self.tracker, seed=3)
        for number in range(checkpoints):
            self.pool.add_checkpoint(f"adapters/{number}" if number else None, number)
        self.pool.add_fixed("random-legal")
        strategy = "groups" if options.get("group_size", 1) > 1 else "random"
        self.buffer = StepBuffer(
            100_000, self.tracker, buffer_strategy=strategy, write_csv=False,
            group_size=options.get("group_size", 1),
        )  # fmt: skip
        arguments: dict[str, Any] = {
            "training_envs": [ENV], "evaluation_envs": [ENV], "compact_views": True,
            "actors": [self.actor], "vllm_config": {},
        } | options  # fmt: skip
        self.collector = Collector(1, self.buffer, self.pool, self.tracker, **arguments)

    def play(self, games: int, **options: Any) -> dict[str, int]:
        return asyncio.run(self.collector.play(games, **options))

    def evaluate(self, games: int, **options: Any) -> list[dict[str, Any]]:
        return asyncio.run(self.collector.evaluate(games, **options))

    def steps(self) -> list[Step]:
        return self.buffer._store.units
