"""Changes as they happen, one stream for a page: what changed is sent, and nothing else.

Sessions tell nobody what they do; they leave files. So a stream looks at the files' times, a few
times a second, and reads those that changed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2p.api.index import Wanted
from p2p.api.views import loop_iterations, session_detail
from p2p.event_log import read_events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from p2p.api.house import House
    from p2p.session.iteration_record import SessionRecord

LOOK_S = 0.5
LISTED = 200
Message = dict[str, str]


async def session_stream(
    house: House, session_id: str, record: SessionRecord, seen: int
) -> AsyncIterator[Message]:
    """What a session's page needs, from now on; ends when the session is gone."""
    view = _SessionView(house, session_id, record, seen)
    while record.path.is_dir():
        for message in await asyncio.to_thread(lambda: list(view.changes())):
            yield message
        await asyncio.sleep(LOOK_S)


async def sessions_stream(house: House) -> AsyncIterator[Message]:
    """Sessions that changed, newest first; the first message has all of the first page."""
    before: dict[str, str] = {}
    while True:
        rows, total = await asyncio.to_thread(house.index.find, Wanted(limit=LISTED))
        now = {row.session_id: row.model_dump_json() for row in rows}
        changed = [text for name, text in now.items() if before.get(name) != text]
        gone = [name for name in before if name not in now]
        if changed or gone or not before:
            data = f'{{"total": {total}, "changed": [{",".join(changed)}], '
            yield {"event": "sessions", "data": data + f'"gone": {json.dumps(gone)}}}'}
        before = now
        await asyncio.sleep(LOOK_S)


@dataclass
class _SessionView:
    """What a client has been told of a session."""

    house: House
    session_id: str
    record: SessionRecord
    seen: int
    told: dict[str, str] = field(default_factory=dict)
    stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def changes(self) -> Iterator[Message]:
        """What is new since the last call."""
        if self._touched():
            detail = session_detail(self.session_id, self.record)
            if detail is not None:
                yield from self._if_new("session", detail.model_dump_json())
            found = loop_iterations(self.session_id, self.record)
            texts = ",".join(each.model_dump_json() for each in found)
            yield from self._if_new("iterations", f"[{texts}]")
        for event in read_events(self.record.events_path, after_seq=self.seen, limit=LISTED):
            self.seen = event.seq
            yield {"event": "event", "id": str(event.seq), "data": event.model_dump_json()}
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
        if self.told.get(kind + key) != data:
            self.told[kind + key] = data
            yield {"event": kind, "data": data}
