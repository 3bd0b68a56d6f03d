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
from unstable.collection.actors import ActorClient, ActorPool, NoActorLeftError, Timeouts


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(instant_actor)
    yield
    ray.cloudpickle.unregister_pickle_by_value(instant_actor)


pytestmark = pytest.mark.usefixtures("cluster")


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
def test_a_dead_actor_is_started_again_a_few_times():
    made: list[Any] = []

    def make(slot: int) -> Any:
        made.append(ray.remote(InstantActor).remote(instant_actor.nonsense))
        return made[-1]

    async def ask_for_ever(line: ActorClient) -> None:
        while True:  # an actor may still answer a moment after it was killed
            await line.generate("?", None, 0)

    async def use() -> None:
        rotation = ActorPool([make(0)], make=make, restarts=1)
        line = rotation.client()
        assert "resign" in (await line.generate("?", None, 0)).text
        ray.kill(made[0])
        while not rotation.deaths:
            assert "resign" in (await line.generate("?", None, 0)).text
        assert rotation.alive == 1
        ray.kill(made[1])
        with pytest.raises(NoActorLeftError, match="all 1 actors"):
            await ask_for_ever(line)

    asyncio.run(asyncio.wait_for(use(), 150))
    assert len(made) == 2


@pytest.mark.slow
def test_an_actor_that_hangs_is_replaced(monkeypatch):
    class Hanging:
        def generate(self, *args: Any, **options: Any) -> None:
            time.sleep(600)

        def ping(self) -> str:
            return "pong"

    made: list[Any] = []

    def make(slot: int) -> Any:
        kind = InstantActor if made else Hanging
        made.append(ray.remote(kind).remote(*([instant_actor.nonsense] if made else [])))
        return made[-1]

    monkeypatch.setattr("unstable.collection.actors.PING_TIMEOUT", 1.0)

    async def use() -> str:
        rotation = ActorPool([make(0)], make=make, timeouts=Timeouts(request=2.0, start=60.0))
        await rotation.ready()
        return (await rotation.client().generate("?", None, 0)).text

    assert "resign" in asyncio.run(asyncio.wait_for(use(), 150))
    assert len(made) == 2


@pytest.mark.slow
def test_a_collector_without_a_buffer_ends(tmp_path):
    collector, buffer, _ = collector_actor(tmp_path, actors(1))
    collecting = collector.collect.remote(4)
    until(lambda: ray.get(collector.stats.remote())["games"] > 3)
    ray.kill(buffer)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(collecting, timeout=120)


@pytest.mark.slow
def test_it_starts_its_own_actors_and_a_killed_one_again(tmp_path):
    """Kill -9 of the process that generates, while games are under way."""
    from unstable.tiny.model import byte_tokenizer, new_model, save_tokenizer

    tokenizer = byte_tokenizer()
    new_model(tokenizer, seed=3).save_pretrained(tmp_path / "tiny")
    save_tokenizer(tokenizer, tmp_path / "tiny")
    config = {"model_name": str(tmp_path / "tiny"), "max_tokens": 6, "device": "cpu"}
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
