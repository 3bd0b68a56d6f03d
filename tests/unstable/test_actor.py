"""Actors: plain objects here, Ray actors elsewhere; taken in turn, some of which die."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from instant_actor import InstantActor, nonsense
from ray.exceptions import ActorDiedError
from small_qwen import (
    byte_tokenizer,
    logprobs_of,
    save_adapter,
    save_qwen,
    small_qwen,
    with_adapter,
)

import unstable
from unstable.actor import ActorPool, NoActorLeftError, Timeouts, VLLMActor
from unstable.engines import EngineError
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_qwen(tmp_path_factory.mktemp("models") / "small")


def config(folder: str, **changes: Any) -> dict[str, Any]:
    settings = {
        "model_name": folder, "engine": "transformers", "device": "cpu", "max_parallel_seq": 16,
        "max_model_len": 128, "max_loras": 3, "lora_config": {"lora_rank": 4},
        "temperature": 1.0, "top_p": 1.0, "max_tokens": 6,
    }  # fmt: skip
    return settings | changes


def test_actor_adds_no_markup_to_a_prompt(folder: str):
    async def ask() -> None:
        actor = VLLMActor(config(folder), name="one")
        assert await actor.ping() == "one"
        answer = await actor.generate("<board> ü", seed=3)
        expected = byte_tokenizer().encode("<board> ü", add_special_tokens=False)
        assert list(answer.prompt_ids) == expected
        assert 1 <= len(answer.token_ids) == len(answer.logprobs) <= 6
        assert answer == await actor.generate("<board> ü", seed=3)
        assert answer != await actor.generate("<board> ü", seed=4)
        assert len((await actor.generate("<board>", seed=1, max_tokens=2)).token_ids) <= 2
        greedy = await actor.generate("<board>", temperature=0.0)
        again = await actor.generate("<board>", temperature=0.0, top_p=0.5)
        assert greedy.token_ids == again.token_ids
        assert (greedy.sampling.temperature, again.sampling.top_p) == (0.0, 0.5)
        assert isinstance(await actor.submit_prompt("<board>"), str)
        with pytest.raises(EngineError, match="max_model_len"):
            await actor.generate("x" * 128)
        await actor.close()
        with pytest.raises(EngineError, match="closed"):
            await actor.generate("<board>")

    asyncio.run(ask())


def test_actor_uses_the_adapter_of_each_prompt(folder: str, tmp_path: Path):
    model = small_qwen()
    adapter = save_adapter(tmp_path / "adapter", model, 1)

    async def ask(actor: VLLMActor) -> Any:
        return await asyncio.gather(
            *(actor.generate(f"board {n}", (None, adapter)[n % 2], seed=n) for n in range(10))
        )

    actor = VLLMActor(config(folder))
    for _ in range(2):  # an actor outlives an event loop
        for number, answer in enumerate(asyncio.run(ask(actor))):
            policy = with_adapter(model, (None, adapter)[number % 2])
            expected = logprobs_of(policy, answer.prompt_ids, answer.token_ids)
            assert answer.logprobs == pytest.approx(expected, abs=1e-5)


def test_actor_fetches_adapters_from_the_pool(folder: str, tmp_path: Path):
    adapter = tmp_path / "adapter"
    save_adapter(adapter, small_qwen(), 1)
    pool = ModelPool("mirror", max_active_lora=1)
    elsewhere = str(tmp_path / "elsewhere" / "iteration-1")
    files = {file.name: file.read_bytes() for file in adapter.iterdir()}
    pool.add_checkpoint(elsewhere, 1, files)
    asked: list[str] = []

    class Counting:
        def adapter_files(self, path: str) -> dict[str, bytes] | None:
            asked.append(path)
            return pool.adapter_files(path)

    async def ask() -> None:
        actor = VLLMActor(config(folder), adapters=Counting())
        here = await actor.generate("board", str(adapter), seed=1)
        many = await asyncio.gather(*(actor.generate("board", elsewhere, seed=1) for _ in range(5)))
        assert {answer.token_ids for answer in many} == {here.token_ids}
        assert asked == [elsewhere]
        for _ in range(2):  # what was not there may be there later
            with pytest.raises(EngineError, match="does not have it"):
                await actor.generate("board", str(tmp_path / "nowhere"))
        assert len(asked) == 3
        fetched = actor._adapters._folder
        assert fetched is not None
        assert fetched.exists()
        await actor.close()
        assert not fetched.exists()

    asyncio.run(ask())


def test_actor_close_fails_pending_requests(folder: str):
    async def ask() -> None:
        actor = VLLMActor(config(folder, max_tokens=100))
        asked = [asyncio.create_task(actor.generate(f"b {n}", seed=n)) for n in range(4)]
        await asyncio.sleep(0)
        assert actor.stats()["queued"] == 4
        asked[0].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert [a.prompt_ids[-1] for a in answers[1:] if not isinstance(a, BaseException)] == [
            byte_tokenizer().encode(str(n), add_special_tokens=False)[0] for n in (1, 2, 3)
        ]
        pending = asyncio.create_task(actor.generate("board", seed=1))
        await asyncio.sleep(0)
        await actor.close()
        with pytest.raises(EngineError, match="closed"):
            await asyncio.wait_for(pending, 10)

    asyncio.run(ask())


def test_short_run_reports_throughput(folder: str, tmp_path: Path):
    tracker = Tracker("run", run_dir=tmp_path / "run")

    async def ask() -> None:
        actor = VLLMActor(config(folder, max_tokens=100), tracker, "actor-0")
        await actor.generate("board", seed=0)
        assert "actor-0" not in tracker.get_interface_info()["inference"]
        await actor.close()

    asyncio.run(ask())
    assert tracker.get_interface_info()["inference"]["actor-0"]["tok_s"] > 0
    tracker.close()


@pytest.mark.usefixtures("cluster")
def test_ray_actor_gives_the_same_answers(folder: str, tmp_path: Path):
    save_adapter(tmp_path / "adapter", small_qwen(), 1)
    files = {file.name: file.read_bytes() for file in (tmp_path / "adapter").iterdir()}
    shutil.rmtree(tmp_path / "adapter")
    elsewhere = str(tmp_path / "adapter")
    pool = unstable.ModelPool.remote(sample_mode="mirror", max_active_lora=2)
    ray.get(pool.add_checkpoint.remote(elsewhere, 1, files))
    remote = unstable.VLLMActor.remote(config(folder), None, "actor-0", pool)
    assert ray.get(remote.ping.remote(), timeout=120) == "actor-0"
    asked = [(f"board {n}", (None, elsewhere)[n % 2], n) for n in range(20)]
    far = ray.get(
        [remote.generate.remote(text, path, seed=seed) for text, path, seed in asked], timeout=120
    )

    async def here() -> Any:
        local = VLLMActor(config(folder), adapters=pool)
        return await asyncio.gather(*(local.generate(t, path, seed=s) for t, path, s in asked))

    for one, other in zip(far, asyncio.run(here()), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    with pytest.raises(EngineError, match="max_model_len"):
        ray.get(remote.generate.remote("x" * 200))
    assert ray.get(remote.stats.remote())["running"] == 0
    # No core is kept from others, also where options name a GPU.
    engine = unstable.VLLMActor.options(num_gpus=0).remote(config(folder))
    assert ray.get(engine.ping.remote(), timeout=120)
    cores = ray.cluster_resources()["CPU"]
    until = time.monotonic() + 30
    while ray.available_resources()["CPU"] < cores:
        assert time.monotonic() < until, ray.available_resources()
        time.sleep(0.1)
    assert unstable.StandardLearner._default_options["num_cpus"] == 0


class Mortal(InstantActor):
    """Dies when it is told to."""

    def __init__(self, *, alive: bool = True, hangs: bool = False) -> None:
        super().__init__(nonsense)
        self.alive, self.hangs = alive, hangs

    async def generate(self, *args: Any, **options: Any) -> Any:
        if not self.alive:
            raise ActorDiedError
        if self.hangs:
            await asyncio.sleep(3600)
        return await super().generate(*args, **options)

    async def ping(self) -> str:
        if not self.alive:
            raise ActorDiedError
        return "pong"


def texts(rotation: ActorPool, games: int) -> list[str]:
    async def ask() -> list[str]:
        lines = [rotation.client() for _ in range(games)]
        answers = await asyncio.gather(
            *(line.generate("?", None, i) for i, line in enumerate(lines))
        )
        return [answer.text for answer in answers]

    return asyncio.run(asyncio.wait_for(ask(), 30))


def test_actor_pool_resends_requests_of_a_dead_actor():
    actors = [Mortal() for _ in range(3)]
    expected = texts(ActorPool([Mortal()]), 12)
    actors[1].alive = False
    rotation = ActorPool(actors)
    assert texts(rotation, 12) == expected
    assert [len(actor.requests) for actor in actors] == [4, 0, 8]
    assert (rotation.alive, rotation.deaths) == (2, 1)


def test_actor_pool_without_actors_raises_last_error():
    rotation = ActorPool([Mortal(alive=False), Mortal(alive=False)])
    with pytest.raises(NoActorLeftError, match="all 2 actors have died"):
        texts(rotation, 4)


def test_actor_pool_restarts_dead_actors():
    made = [Mortal(alive=False), Mortal(alive=False), Mortal()]
    waiting = iter(made)
    rotation = ActorPool([Mortal(alive=False)], make=lambda slot: next(waiting))
    assert len(texts(rotation, 3)) == 3
    assert (rotation.alive, rotation.deaths) == (1, 1)
    assert len(made[2].requests) == 3


def test_late_answer_fails_its_request_only():
    rotation = ActorPool([Mortal(hangs=True)], timeouts=Timeouts(request=0.1))
    with pytest.raises(EngineError, match=r"no answer in 0\.1 s"):
        texts(rotation, 1)
    assert rotation.alive == 1


def test_actor_without_ping_is_marked_dead(monkeypatch):
    monkeypatch.setattr("unstable.actor.PING_TIMEOUT", 0.1)

    class Deaf(Mortal):
        async def ping(self) -> str:
            await asyncio.sleep(3600)
            return ""

    rotation = ActorPool([Deaf(hangs=True), Mortal()], timeouts=Timeouts(request=0.1))
    assert len(texts(rotation, 4)) == 4
    assert (rotation.alive, rotation.deaths) == (1, 1)


def test_actor_that_does_not_start_is_named():
    rotation = ActorPool([Mortal(), Mortal(alive=False)])
    with pytest.raises(NoActorLeftError, match="actor 1 did not start"):
        asyncio.run(rotation.ready())
