"""The collector among Ray actors: as one of them, and when those that generate die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import instant_actor
import pytest
import ray
from collector_run import ENV, Run
from instant_actor import InstantActor
from processes import kill_process

import unstable
from unstable.actor import NoActorLeftError


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(instant_actor)
    yield
    ray.cloudpickle.unregister_pickle_by_value(instant_actor)


pytestmark = [pytest.mark.process, pytest.mark.usefixtures("cluster")]


def actors(number: int) -> list[Any]:
    kind = ray.remote(InstantActor)
    found = [kind.options(max_concurrency=100).remote() for _ in range(number)]
    ray.get([actor.ping.remote() for actor in found], timeout=120)
    return found


def until(condition: Callable[[], bool], seconds: float = 150.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def collector_actor(
    tmp_path: Path, given: list[Any] | None, **changes: Any
) -> tuple[Any, Any, Any]:
    tracker = unstable.Tracker.remote("run", run_dir=str(tmp_path / "run"), writers=("jsonl",))
    buffer = unstable.StepBuffer.remote(200, tracker, write_csv=False)
    pool = unstable.ModelPool.remote("mirror", 3, tracker)
    ray.get(pool.add_checkpoint.remote(path=None, iteration=-1))
    arguments = {
        "num_actors": 2, "vllm_config": {}, "training_envs": [ENV], "evaluation_envs": [ENV],
        "max_eval_games_per_ckpt": 6, "compact_views": True, "actors": given,
    } | changes  # fmt: skip
    collector = unstable.Collector.remote(
        step_buffer=buffer, model_pool=pool, tracker=tracker, **arguments
    )
    return collector, buffer, tracker


def test_all_parts_as_actors_collect_until_the_buffer_is_stopped(tmp_path):
    collector, buffer, tracker = collector_actor(tmp_path, actors(2))
    collecting = collector.collect.remote(num_workers=16, num_eval_workers=4)
    until(lambda: ray.get(buffer.size.remote()) == 200)
    until(lambda: ray.get(collector.stats.remote())["under_way"]["train"] == 0)  # it is full
    batch = ray.get(buffer.get_batch.remote(150))
    assert {step.version for step in batch} == {-1}
    assert all(step.completion_ids[-1] == instant_actor.END for step in batch)
    until(lambda: ray.get(buffer.size.remote()) == 200)  # and on it goes
    until(lambda: ray.get(collector.stats.remote())["eval_games"] == 6)
    ray.get(buffer.stop.remote())
    counts = ray.get(collecting, timeout=90)
    assert counts["eval_games"] == 6
    assert counts["failed"] == 0
    (evaluated,) = ray.get(tracker.get_evaluations.remote())
    assert evaluated["games"] == 6


def test_when_an_actor_dies_its_games_go_on_with_another(tmp_path):
    given = actors(2)
    run = Run(tmp_path, actors=given)

    async def play() -> dict[str, int]:
        playing = asyncio.create_task(run.collector.play(60, num_workers=16))
        while run.collector.counts["games"] < 5:
            await asyncio.sleep(0.01)
        ray.kill(given[0])
        async with asyncio.timeout(120):
            return await playing

    counts = asyncio.run(play())
    assert counts["games"] == 60
    assert counts["failed"] == 0
    stats = run.collector.stats()
    assert (stats["actors"], stats["actor_deaths"]) == (1, 1)

    alone = Run(tmp_path / "alone")  # requests have seeds: who answers makes no difference
    alone.play(60, num_workers=16)
    assert alone.steps() == run.steps()


def test_when_all_actors_are_dead_collection_ends_with_the_reason(tmp_path):
    given = actors(2)
    collector, buffer, _ = collector_actor(tmp_path, given)
    collecting = collector.collect.remote(16, 2)
    until(lambda: ray.get(collector.stats.remote())["games"] > 3)
    ray.get(buffer.get_batch.remote(5))
    for actor in given:
        ray.kill(actor)
    ray.get(buffer.clear.remote())
    with pytest.raises(NoActorLeftError, match="all 2 actors have died"):
        ray.get(collecting, timeout=120)
    assert ray.get(buffer.stopped.remote())  # nobody waits for data that will not come


@pytest.mark.slow
def test_a_collector_without_a_buffer_ends(tmp_path):
    collector, buffer, _ = collector_actor(tmp_path, actors(1))
    collecting = collector.collect.remote(4)
    until(lambda: ray.get(collector.stats.remote())["games"] > 3)
    ray.kill(buffer)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(collecting, timeout=120)


@pytest.mark.slow
def test_it_starts_its_own_actors_and_a_killed_one_again(tmp_path, tiny):
    """Kill -9 of the process that generates, while games are under way."""
    config = {"model_name": str(tiny), "max_tokens": 6, "device": "cpu"}
    env = (ENV[0], 2, "bare")
    collector, buffer, _ = collector_actor(
        tmp_path, None, vllm_config=config, training_envs=[env], evaluation_envs=[], num_actors=1
    )
    collecting = collector.collect.remote(8)
    until(lambda: ray.get(buffer.size.remote()) == 200)
    kill_process("VLLMActor")
    ray.get(buffer.clear.remote())
    until(lambda: ray.get(buffer.size.remote()) == 200)
    stats = ray.get(collector.stats.remote())
    assert (stats["actors"], stats["actor_deaths"], stats["failed"]) == (1, 1, 0)
    ray.get(buffer.stop.remote())
    assert ray.get(collecting, timeout=90)["games"] > 20
