"""Changes as they happen, one stream for a page: what changed is sent, and nothing else.

Sessions tell nobody what they do; they leave files. So somebody looks at the files' times, a few
times a second, and reads those that changed: once for all clients that watch the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sse_starlette import EventSourceResponse

from p2p.api.channels import Gone, Message
from p2p.api.index import Wanted
from p2p.api.problems import NotFound
from p2p.api.views import loop_iterations, session_detail
from p2p.event_log import last_event, read_events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from p2p.api.house import House
    from p2p.contracts import Event
    from p2p.records.iteration_record import SessionRecord

LOOK_S = 0.5
BENCHMARK_LOOK_S = 1.0
PING_S = 15
LISTED = 200
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
    """The answer that sends them."""
    return EventSourceResponse(messages, ping=PING_S, headers={"X-Accel-Buffering": "no"})


def session_stream(
    house: House, session_id: str, record: SessionRecord, seen: int
) -> AsyncIterator[Message]:
    """What a session's page needs, from event `seen` on; ends when the session is gone."""
    key = ("session", session_id)
    return house.channels.listen(key, lambda: SessionView(session_id, record), LOOK_S, seen)


def sessions_stream(house: House) -> AsyncIterator[Message]:
    """Sessions that changed, newest first; the first message has all of the first page."""
    return house.channels.listen("sessions", lambda: SessionsView(house), LOOK_S)


def benchmark_stream(house: House, benchmark_id: str) -> AsyncIterator[Message]:
    """A benchmark and its cases, each as it changes; ends when the benchmark is gone."""
    key = ("benchmark", benchmark_id)
    return house.channels.listen(
        key, lambda: BenchmarkView(house=house, benchmark_id=benchmark_id), BENCHMARK_LOOK_S
    )


def benchmarks_stream(house: House) -> AsyncIterator[Message]:
    """The list of benchmarks, at first and when it changes."""
    return house.channels.listen(
        "benchmarks", lambda: BenchmarksView(house=house), BENCHMARK_LOOK_S
    )


@dataclass
class _Told:
    """Texts by what they are about, and which of them are new."""

    messages: dict[str, Message] = field(default_factory=dict)

    def look(self) -> list[Message]:
        """See View."""
        now = self.texts()
        new = {
            key: {"event": key.split()[0], "data": text}
            for key, text in now.items()
            if key not in self.messages or self.messages[key]["data"] != text
        }
        self.messages.update(new)
        return list(new.values())

    def standing(self, after: int) -> list[Message]:  # noqa: ARG002 - not told by numbers
        """See View."""
        return list(self.messages.values())

    def texts(self) -> dict[str, str]:
        """All that there is to tell now, by the event's name and what else tells them apart."""
        raise NotImplementedError


@dataclass
class BenchmarkView(_Told):
    """A benchmark and its cases."""

    house: House = field(kw_only=True)
    benchmark_id: str = field(kw_only=True)

    def texts(self) -> dict[str, str]:
        """See above."""
        try:
            with self.house.store() as store:
                cases = self.house.benchmarks.cases(self.benchmark_id, store)
                detail = self.house.benchmarks.detail(self.benchmark_id, store, cases)
        except NotFound as error:
            raise Gone from error
        found = {f"case {case.case.number}": case.model_dump_json() for case in cases}
        return {**found, "benchmark": detail.model_dump_json()}


@dataclass
class BenchmarksView(_Told):
    """The list of benchmarks."""

    house: House = field(kw_only=True)

    def texts(self) -> dict[str, str]:
        """See above."""
        with self.house.store() as store:
            rows = self.house.benchmarks.summaries(store)
        return {"benchmarks": f"[{','.join(row.model_dump_json() for row in rows)}]"}


@dataclass
class SessionsView:
    """The first page of the list of sessions."""

    house: House
    rows: dict[str, str] = field(default_factory=dict)
    total: int = -1

    def look(self) -> list[Message]:
        """See View."""
        before, total_before = self.rows, self.total
        rows, self.total = self.house.index.find(Wanted(limit=LISTED))
        self.rows = {row.session_id: row.model_dump_json() for row in rows}
        changed = [text for name, text in self.rows.items() if before.get(name) != text]
        gone = [name for name in before if name not in self.rows]
        if not (changed or gone or self.total != total_before):
            return []
        return [self._message(changed, gone)]

    def standing(self, after: int) -> list[Message]:  # noqa: ARG002 - not told by numbers
        """See View."""
        return [self._message(list(self.rows.values()), [])]

    def _message(self, changed: list[str], gone: list[str]) -> Message:
        data = f'{{"total": {self.total}, "changed": [{",".join(changed)}], '
        return {"event": "sessions", "data": data + f'"gone": {json.dumps(gone)}}}'}


@dataclass
class SessionView:
    """A session: what it is, its iterations, its events, how far its runs are."""

    session_id: str
    record: SessionRecord
    seen: int = -1
    """The last event that was told of; what was before the first look, nobody is told by it."""
    told: dict[str, Message] = field(default_factory=dict)
    stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def look(self) -> list[Message]:
        """See View."""
        if not self.record.path.is_dir():
            raise Gone
        return list(self._changes())

    def standing(self, after: int) -> list[Message]:
        """See View."""
        messages = list(self.told.values())
        while after < self.seen:
            events = read_events(self.record.events_path, after_seq=after, limit=LISTED)
            messages += [_event(each) for each in events if each.seq <= self.seen]
            after = events[-1].seq if events else self.seen
        return messages

    def _changes(self) -> Iterator[Message]:
        if self.seen < 0:
            last = last_event(self.record.events_path)
            self.seen = last.seq if last else 0
        if self._touched():
            detail = session_detail(self.session_id, self.record)
            if detail is not None:
                yield from self._if_new("session", detail.model_dump_json())
            found = loop_iterations(self.session_id, self.record)
            texts = ",".join(each.model_dump_json() for each in found)
            yield from self._if_new("iterations", f"[{texts}]")
        for event in read_events(self.record.events_path, after_seq=self.seen, limit=LISTED):
            self.seen = event.seq
            yield _event(event)
        yield from self._metrics()

    def _touched(self) -> bool:
        """Whether any folder of the session has another time: every write replaces a file."""
        folders = [self.record.path, self.record.path / "steering"]
        for iteration in self.record.iteration_records():
            folders += [iteration.path, *(run.path for run in iteration.runs())]
        stamps = {}
        for folder in folders:
            try:
                found = folder.stat()
            except OSError:
                continue
            stamps[folder] = (found.st_mtime_ns, found.st_ino)
        changed = stamps != self.stamps
        self.stamps = stamps
        return changed

    def _metrics(self) -> Iterator[Message]:
        """The progress of the runs of the last iteration."""
        iterations = self.record.iteration_records()
        for run in (iterations[-1].runs() or iterations[-1:]) if iterations else ():
            progress = run.compute_progress()
            if progress is not None:
                data = {"run_id": run.iteration_id, "iteration_id": iterations[-1].iteration_id,
                        "progress": round(progress, 4)}  # fmt: skip
                yield from self._if_new("metrics", json.dumps(data), key=run.iteration_id)

    def _if_new(self, kind: str, data: str, key: str = "") -> Iterator[Message]:
        before = self.told.get(kind + key)
        if before is None or before["data"] != data:
            self.told[kind + key] = {"event": kind, "data": data}
            yield self.told[kind + key]


def _event(event: Event) -> Message:
    return {"event": "event", "id": str(event.seq), "data": event.model_dump_json()}
