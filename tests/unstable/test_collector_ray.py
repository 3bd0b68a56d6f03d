"""The collector among Ray actors: as one of them, and when those that generate die."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import instant_actor
import pytest
import ray
from collector_run import ENV
from instant_actor import InstantActor
from processes import kill_process

import unstable


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
