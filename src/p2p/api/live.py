"""Server-sent events that say what has changed; whoever hears of it fetches it.

Sessions leave files and notify nobody. So the times of their files are looked at twice a second,
once for all clients that watch the same subject.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sse_starlette import EventSourceResponse

from p2p.api.problems import ResourceNotFound
from p2p.event_log import last_event

if TYPE_CHECKING:
    from pathlib import Path

    from p2p.records.iteration_record import SessionRecord

Message = dict[str, str]
Stamps = Mapping[str, object]
"""The parts of a subject, each with something that differs when the part has changed."""
LOOK_S = 0.5
IDLE_SHARE = 10
"""After a long look, so many times its length passes before the next one."""
PING_S = 15
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "server-sent events, each of this form; `data` is JSON",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "event": {"type": "string"},
                        "data": {"type": "string"},
                        "id": {"type": "string"},
                    },
                }
            }
        },
    }
}
"""For the documentation of a route that answers with a stream."""


def stream(messages: AsyncIterator[Message]) -> EventSourceResponse:
    return EventSourceResponse(messages, ping=PING_S, headers={"X-Accel-Buffering": "no"})


class _Subject:
    """A watched subject: its parts as they were at the last look."""

    def __init__(self, look: Callable[[], Stamps]) -> None:
        self.stamps: Stamps = {}
        self.watchers = 0
        self.news = asyncio.Event()
        self.task = asyncio.create_task(self._watch(look))

    async def _watch(self, look: Callable[[], Stamps]) -> None:
        try:
            with suppress(ResourceNotFound):  # it is gone: the streams end
                while True:
                    began = time.monotonic()
                    self.stamps = await asyncio.to_thread(look)
                    self._wake()
                    await asyncio.sleep(max(LOOK_S, IDLE_SHARE * (time.monotonic() - began)))
        finally:
            self._wake()

    def _wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class Watcher:
    """Looks at each subject while somebody watches it; used in the event loop."""

    def __init__(self) -> None:
        self._subjects: dict[str, _Subject] = {}

    async def messages(
        self, name: str, look: Callable[[], Stamps], seen: Stamps | None = None
    ) -> AsyncIterator[Message]:
        """A message for each part, and another one whenever it has changed, until it is gone.

        Args:
            name: of the subject; those who give the same one share its looks.
            look: runs in a thread; raises NotFound when the subject is gone.
            seen: parts as the client knows them: about these it hears when they differ.
        """
        subject = self._subjects.get(name)
        if subject is None or subject.task.done():
            subject = self._subjects[name] = _Subject(look)
        subject.watchers += 1
        known = dict(seen or {})
        try:
            while True:
                news, stamps, gone = subject.news, subject.stamps, subject.task.done()
                for part, stamp in stamps.items():
                    if part not in known or known[part] != stamp:
                        known[part] = stamp
                        yield _message(part, stamp)
                if gone:
                    return
                await news.wait()
        finally:
            subject.watchers -= 1
            if not subject.watchers:
                subject.task.cancel()
                if self._subjects.get(name) is subject:
                    del self._subjects[name]


def _message(part: str, stamp: object) -> Message:
    if part != "event":
        return {"event": part, "data": "{}"}
    return {"event": part, "id": str(stamp), "data": json.dumps({"seq": stamp})}


def session_stamps(record: SessionRecord) -> Stamps:
    """A session's own files, its last event, and the curves and videos of its last iteration."""
    if not record.path.is_dir():
        raise ResourceNotFound(f"{record.path.name} is gone")
    iterations = [(iteration, iteration.runs()) for iteration in record.iteration_records()]
    folders = [record.path, record.steering_dir]
    for iteration, runs in iterations:
        folders += [iteration.path, *(run.path for run in runs)]
    last = last_event(record.events_path)
    training = (iterations[-1][1] or [iterations[-1][0]]) if iterations else []
    return {
        # Every write replaces a file, and so changes the time of its folder; a process that died
        # changes the status alone.
        "session": (record.derive_status(), [_stamp(folder) for folder in folders]),
        "event": last.seq if last else 0,
        "metrics": [_stamp(at) for run in training for at in (run.scalars_path, run.videos_dir)],
    }


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size
