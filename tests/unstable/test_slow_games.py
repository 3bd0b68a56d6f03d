"""Games whose moves take time, or do not end."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import textarena
from collector_run import Run
from instant_actor import InstantActor, listed_move
from textarena.envs.registration import ENV_REGISTRY, register
from textarena.envs.TicTacToe.env import TicTacToeEnv

from unstable.matchmaking import DROP_TIMEOUT

GAMES = 12
DEADLINE = 30.0
inside: Callable[[Any], None] = lambda env: None  # noqa: E731 - what a move waits for


class Slow(TicTacToeEnv):
    moves = 0

    def reset(self, num_players: int, seed: int | None = None) -> None:
        super().reset(num_players, seed)
        self.drawn: list[float] = []

    def step(self, action: str) -> tuple[bool, textarena.Info]:
        self.drawn.append(random.random())
        inside(self)
        self.moves += 1
        self.drawn += [random.gauss(), random.choice(range(1000))]
        done: tuple[bool, textarena.Info] = super().step(action)
        if done[0]:
            rewards = {0: self.drawn[0], 1: sum(self.drawn)}
            self.state.rewards = rewards
        return done


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    register("Slow-v0", f"{__name__}:Slow")
    yield
    del ENV_REGISTRY["Slow-v0"]


def slow_run(folder: Path) -> Run:
    envs = [("Slow-v0", 2, "qwen3-zs")]
    return Run(
        folder, InstantActor(listed_move), training_envs=envs, evaluation_envs=[],
        compact_views=False,
    )  # fmt: skip


def test_slow_games_run_concurrently(tmp_path, monkeypatch):
    everybody = threading.Barrier(GAMES)

    def meet(env: Slow) -> None:
        if env.moves == 0:
            everybody.wait(DEADLINE)

    monkeypatch.setattr(sys.modules[__name__], "inside", meet)
    counts = slow_run(tmp_path).play(GAMES, num_workers=GAMES)
    assert (counts["games"], counts["failed"]) == (GAMES, 0)


def test_games_have_independent_random_state(tmp_path, monkeypatch):
    random.seed(5)
    before = random.getstate()
    monkeypatch.setattr(sys.modules[__name__], "inside", lambda env: time.sleep(0.001))
    outcomes = []
    for workers in (1, GAMES):
        run = slow_run(tmp_path / str(workers))
        run.play(GAMES, num_workers=workers)
        outcomes.append([(step.obs, step.act, step.reward) for step in run.steps()])
    assert outcomes[0] == outcomes[1]
    assert len({reward for *_, reward in outcomes[0]}) == 2 * GAMES
    assert random.getstate() == before


def test_hanging_move_does_not_block_exit():
    script = """
import asyncio, threading
from unstable.utils.handles import run_in_thread

async def main():
    try:
        async with asyncio.timeout(0.1):
            await run_in_thread(threading.Event().wait)
    except TimeoutError:
        print(await run_in_thread(str, "another"))

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=DROP_TIMEOUT + 60, check=True,
    )  # fmt: skip
    assert ended.stdout == "another\n"
