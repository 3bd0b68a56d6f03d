"""Actors taken in turn, some of which die: what Ray raises then, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from instant_actor import InstantActor, nonsense
from ray.exceptions import ActorDiedError

from unstable.actor import ActorPool, NoActorLeftError, Timeouts
from unstable.engines import EngineError


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


def test_a_dead_ones_games_go_to_the_others_with_the_same_answers():
    actors = [Mortal() for _ in range(3)]
    expected = texts(ActorPool([Mortal()]), 12)
    actors[1].alive = False
    rotation = ActorPool(actors)
    assert texts(rotation, 12) == expected
    assert [len(actor.requests) for actor in actors] == [4, 0, 8]
    assert (rotation.alive, rotation.deaths) == (2, 1)


def test_with_none_left_the_last_reason_is_told():
    rotation = ActorPool([Mortal(alive=False), Mortal(alive=False)])
    with pytest.raises(NoActorLeftError, match="all 2 actors have died"):
        texts(rotation, 4)


def test_a_dead_one_is_made_anew_until_one_starts():
    made = [Mortal(alive=False), Mortal(alive=False), Mortal()]
    waiting = iter(made)
    rotation = ActorPool([Mortal(alive=False)], make=lambda slot: next(waiting))
    assert len(texts(rotation, 3)) == 3
    assert (rotation.alive, rotation.deaths) == (1, 1)
    assert len(made[2].requests) == 3


def test_one_that_is_late_but_lives_fails_the_request_only():
    rotation = ActorPool([Mortal(hangs=True)], timeouts=Timeouts(request=0.1))
    with pytest.raises(EngineError, match=r"no answer in 0\.1 s"):
        texts(rotation, 1)
    assert rotation.alive == 1


def test_one_that_hangs_altogether_is_buried(monkeypatch):
    monkeypatch.setattr("unstable.actor.PING_TIMEOUT", 0.1)

    class Deaf(Mortal):
        async def ping(self) -> str:
            await asyncio.sleep(3600)
            return ""

    rotation = ActorPool([Deaf(hangs=True), Mortal()], timeouts=Timeouts(request=0.1))
    assert len(texts(rotation, 4)) == 4
    assert (rotation.alive, rotation.deaths) == (1, 1)


def test_one_that_does_not_start_is_named():
    rotation = ActorPool([Mortal(), Mortal(alive=False)])
    with pytest.raises(NoActorLeftError, match="actor 1 did not start"):
        asyncio.run(rotation.ready())
