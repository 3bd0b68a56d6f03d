"""Collecting until the buffer is stopped."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from collector_run import ENV, Run
from instant_actor import InstantActor, nonsense

from unstable.collector import SETTLE_EVERY, CollectionError

KUHN = ("KuhnPoker-v0-train", 2, "qwen3-zs")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def collect(
    run: Run, meanwhile: Callable[[], Coroutine[None, None, None]], *workers: int
) -> dict[str, int]:
    """Collect, do something meanwhile, stop the buffer."""

    async def both() -> dict[str, int]:
        collecting = asyncio.create_task(run.collector.collect(*workers))
        try:
            await meanwhile()
        finally:
            run.buffer.stop()
            async with asyncio.timeout(30):
                counts = await collecting
        return counts

    return asyncio.run(both())


def test_it_goes_on_until_the_buffer_is_stopped(tmp_path):
    run = Run(tmp_path)
    most = 0

    async def watch() -> None:
        nonlocal most
        while run.collector.counts["games"] < 100:
            most = max(most, run.collector.flight.under_way("train"))
            await asyncio.sleep(0)

    counts = collect(run, watch, 12)
    assert counts["games"] >= 100
    assert most == 12
    assert counts["dropped"] <= 12
    assert len(run.collector.flight) == 0
    assert run.buffer.stats()["trajectories"] == 2 * counts["games"]


def test_no_game_is_started_while_the_buffer_is_full(tmp_path):
    run = Run(tmp_path)
    run.buffer.max_buffer_size = 200
    seen: list[int] = []

    async def watch() -> None:
        for _ in range(3):
            await until(lambda: run.buffer.size() == 200 and not len(run.collector.flight))
            requests = len(run.actor.requests)
            await asyncio.sleep(0.5)
            assert len(run.actor.requests) == requests
            seen.append(requests)
            run.buffer.get_batch(100)

    collect(run, watch, 4)
    assert seen == sorted(set(seen))  # and on it went when there was room


def test_games_that_end_while_others_are_started_are_not_left_lying(tmp_path):
    """A pool elsewhere takes its time to draw an opponent; games may be over before."""
    run = Run(tmp_path)

    class SlowPool:
        def __getattr__(self, name: str) -> object:
            async def slowly(*args: object) -> object:
                await asyncio.sleep(0.005)
                return getattr(run.pool, name)(*args)

            return slowly

    run.collector.matches._pool = SlowPool()

    async def watch() -> None:
        await until(lambda: run.collector.counts["games"] > 20)

    collect(run, watch, 12)
    assert run.buffer.size() > 100


def test_games_under_way_are_dropped_at_the_end(tmp_path):
    run = Run(tmp_path, InstantActor(delay=lambda number: 10**9))

    async def watch() -> None:
        await until(lambda: len(run.actor.requests) == 8)

    counts = collect(run, watch, 8)
    assert counts["dropped"] == 8
    assert counts["games"] == 0
    assert run.buffer.size() == 0


def test_evaluation_stops_at_its_cap_for_each_checkpoint_and_environment(tmp_path):
    run = Run(tmp_path, InstantActor(nonsense), evaluation_envs=[ENV, KUHN],
              max_eval_games_per_ckpt=5)  # fmt: skip

    async def watch() -> None:
        await until(lambda: run.collector.counts["eval_games"] == 10)
        await asyncio.sleep(0.3)
        run.pool.add_checkpoint("adapters/1", 1)
        await until(lambda: run.collector.counts["eval_games"] == 20)
        await asyncio.sleep(0.3)

    counts = collect(run, watch, 2, 16)
    assert counts["eval_games"] == 20
    lines = (tmp_path / "eval_data" / "games.jsonl").read_text().splitlines()
    games = [json.loads(line) for line in lines]
    played = Counter((game["ckpt_uid"], game["env_id"]) for game in games)
    assert set(played.values()) == {5}
    assert len(played) == 4
    seeds = {
        uid: {g["seed"] for g in games if g["ckpt_uid"] == uid} for uid in ("ckpt-0", "ckpt-1")
    }
    assert seeds["ckpt-0"] == seeds["ckpt-1"]
    assert json.loads(json.dumps(run.collector.state_dict()))["eval_started"] == {
        uid: {f"{env[0]} random-legal": 5 for env in (ENV, KUHN)} for uid in seeds
    }


def test_finishing_completes_the_newest_evaluation_and_trains_no_more(tmp_path):
    run = Run(tmp_path, max_eval_games_per_ckpt=60)

    async def finished() -> dict[str, int]:
        collecting = asyncio.create_task(run.collector.collect(8, 1))
        await until(lambda: run.collector.counts["games"] >= 20)
        run.pool.add_checkpoint("adapters/1", 1)
        await until(lambda: bool(run.collector._eval_started["ckpt-1"]))
        before = run.collector.counts["games"]
        run.collector.finish()
        async with asyncio.timeout(30):
            counts = await collecting
        assert counts["games"] <= before + 8
        return counts

    assert asyncio.run(finished())["eval_games"] > 60
    assert not run.buffer.stopped()
    newest = [e for e in run.tracker.get_evaluations() if e["ckpt_uid"] == "ckpt-1"]
    assert [e["games"] for e in newest] == [60]
    assert len(run.collector.flight) == 0


def test_an_evaluation_that_fails_costs_no_training(tmp_path):
    """The opponent is not there: evaluation games fail, once each, and training goes on."""
    run = Run(tmp_path, evaluation_opponent=str(tmp_path), max_eval_games_per_ckpt=30)
    (tmp_path / "adapter_config.json").write_text("{}")
    run.actor.broken_adapters.add(str(tmp_path))

    async def watch() -> None:
        await until(lambda: run.collector.counts["eval_failed"] == 30)
        games = run.collector.counts["games"]
        await until(lambda: run.collector.counts["games"] > games + 20)

    counts = collect(run, watch, 4, 8)
    assert counts["eval_failed"] == 30
    assert counts["failed"] == 0


def test_when_every_game_fails_it_ends_and_stops_the_buffer(tmp_path):
    run = Run(tmp_path)
    run.actor.fail = lambda number: True
    with pytest.raises(CollectionError, match="20 games in a row"):
        asyncio.run(asyncio.wait_for(run.collector.collect(8), 30))
    assert run.buffer.stopped()
    assert len(run.collector.flight) == 0


class SlowTracker:
    """Takes calls as a Ray actor does, and deals with one at a time, slowly."""

    def __init__(self) -> None:
        self.waiting = self.most = 0

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=self._take)

    def _take(self, *args: Any, **options: Any) -> asyncio.Future[None]:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.0005 * self.waiting, self._deal, done)
        return done

    def _deal(self, done: asyncio.Future[None]) -> None:
        self.waiting -= 1
        if not done.cancelled():
            done.set_result(None)


def test_a_tracker_that_is_slow_is_waited_for(tmp_path):
    run = Run(tmp_path)
    run.collector._tracker = tracker = SlowTracker()

    async def watch() -> None:
        await until(lambda: run.collector.counts["games"] >= 3 * SETTLE_EVERY)

    collect(run, watch, 8)
    # Two seats tell it of a game; what is under way lands in between.
    assert tracker.most < 2 * (SETTLE_EVERY + 3 * 8)
