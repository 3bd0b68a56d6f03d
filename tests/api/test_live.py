"""Streams say what has changed; many who watch the same share one look at it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from small_runs import make_session

from p2p.api import live
from p2p.api.live import Message, Stamps, Watcher, session_stamps
from p2p.api.problems import ResourceNotFound
from p2p.event_log import EventLog

PATIENCE_S = 30


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.001)


class Counter:
    """A subject that changes with every look, up to a number; then it is gone."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.looks, self.most = 0, most

    def look(self) -> Stamps:
        if self.looks == self.most:
            raise ResourceNotFound("gone")
        self.looks += 1
        return {"event": self.looks, "constant": 0}


async def seqs(messages: AsyncIterator[Message], count: int) -> list[int]:
    """The numbers of so many events, or of all until the end."""
    numbers: list[int] = []
    async for message in messages:
        if message["event"] == "event":
            numbers.append(int(message["id"]))
        if len(numbers) == count:
            break
    return numbers


def test_watchers_share_looks_and_get_changes_once() -> None:
    counter = Counter()

    async def client(watcher: Watcher, delay: float) -> list[int]:
        await asyncio.sleep(delay)
        async with aclosing(watcher.messages("x", counter.look)) as messages:
            return await seqs(messages, 20)

    async def many() -> list[list[int]]:
        watcher = Watcher()
        return await asyncio.gather(*(client(watcher, n / 1000) for n in range(50)))

    heard = asyncio.run(asyncio.wait_for(many(), PATIENCE_S))
    for numbers in heard:
        assert numbers == sorted(set(numbers))
    assert counter.looks < sum(map(len, heard)) / 5


def test_subject_is_looked_at_only_while_watched() -> None:
    counter = Counter()

    async def watch() -> int:
        async with aclosing(Watcher().messages("x", counter.look)) as messages:
            await seqs(messages, 3)
        before = counter.looks
        await asyncio.sleep(0.1)
        return counter.looks - before

    assert asyncio.run(asyncio.wait_for(watch(), PATIENCE_S)) <= 1


def test_streams_end_when_the_subject_is_gone() -> None:
    async def both() -> list[list[int]]:
        watcher, counter = Watcher(), Counter(most=5)
        clients = (seqs(watcher.messages("x", counter.look), 100) for _ in range(2))
        return await asyncio.gather(*clients)

    for numbers in asyncio.run(asyncio.wait_for(both(), PATIENCE_S)):
        assert numbers[-1] == 5


def test_slow_reader_gets_latest_change_only() -> None:
    counter = Counter(most=100)

    async def slow() -> list[int]:
        async with aclosing(Watcher().messages("x", counter.look)) as messages:
            first = await seqs(messages, 1)
            while counter.looks < counter.most:
                await asyncio.sleep(0.01)
            return first + await seqs(messages, 100)

    numbers = asyncio.run(asyncio.wait_for(slow(), PATIENCE_S))
    assert len(numbers) <= 3
    assert numbers[-1] == 100


def test_session_stream_names_changed_part(tmp_path: Path) -> None:
    record = make_session(tmp_path, "session_a")
    run = record.iteration(1).runs()[0]

    async def follow() -> list[str]:
        parts = []
        messages = Watcher().messages("x", lambda: session_stamps(record), {"event": 3})
        changes = (
            lambda: EventLog(record.events_path).emit("something.happened"),
            lambda: run.scalars_path.write_text("{}\n"),
            lambda: (run.videos_dir / "eval_200_median.mp4").write_bytes(b""),
            lambda: record.update_metadata(alias="x"),
            lambda: run.set_status("error"),
            lambda: shutil.rmtree(record.path),
        )
        async with aclosing(messages):
            parts += [(await anext(messages))["event"] for _ in range(2)]
            for change in changes[:-1]:
                change()
                parts.append((await anext(messages))["event"])
            changes[-1]()
            async for _ in messages:  # what it hears while the folder goes does not matter
                pass
        return parts

    heard = asyncio.run(asyncio.wait_for(follow(), PATIENCE_S))
    assert heard == ["session", "metrics", "event", "metrics", "metrics", "session", "session"]


def test_stream_begins_after_last_event_seen(client: TestClient) -> None:
    with client.stream("GET", "/api/sessions/session_a/live", params={"after": 2}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in stream.iter_lines() if line.startswith(("event: ", "data: ")))
        heard = dict.fromkeys(next(lines) + " " + next(lines) for _ in range(3))
    assert f"event: event data: {json.dumps({'seq': 3})}" in heard
