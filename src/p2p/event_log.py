"""events.jsonl: what happened in a session, in one sequence over all its processes.

Code that has something to tell calls `emit` or `span`. They write to the log that `use_log` has
made current in this context, and do nothing where there is none.
"""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from p2p.contracts import Event, utc_now
from p2p.files import append_line, hold_lock, lines_backward, open_data, parse_line, read_from
from p2p.settings import redact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHORT_TEXT = 200
SHORT_LIST = 20

Span = dict[str, Any]
"""What the body of a span adds to its end."""

_current: ContextVar[EventLog | None] = ContextVar("event_log", default=None)


class EventLog:
    """A session's log. Any number of processes and threads may write through their own object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path.with_name(path.name + ".lock")
        self._size = -1
        self._seq = 0

    def emit(
        self,
        event: str,
        /,
        *,
        iteration: int | None = None,
        duration_ms: float | None = None,
        **data: Any,
    ) -> Event:
        """Append an event; what JSON cannot hold goes in as text, secrets do not go in at all."""
        with hold_lock(self._lock_path):
            record = Event(
                seq=self._last_seq() + 1,
                timestamp=utc_now(),
                event=event,
                iteration=iteration,
                data=_to_json_value(data),
                duration_ms=duration_ms,
            )
            line = redact(json.dumps(record.model_dump(mode="json"), allow_nan=False))
            self._size = append_line(self.path, line.encode("ascii"))
            self._seq = record.seq
        return record

    def _last_seq(self) -> int:
        """The last number given out; looks into the file only if someone else wrote to it."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return 0
        if size != self._size:
            # A line that lacks only its newline has used its number, too.
            lines = lines_backward(self.path, unfinished=True)
            self._seq = next((e.seq for line in lines if (e := _parse_event(line)) is not None), 0)
        return self._seq


# --- the current log ------------------------------------------------------------------------------


@contextmanager
def use_log(log: EventLog | None) -> Iterator[None]:
    """Make a log the current one; threads inherit it through contextvars.copy_context()."""
    token = _current.set(log)
    try:
        yield
    finally:
        _current.reset(token)


def current_log() -> EventLog | None:
    """The log that `emit` and `span` write to here."""
    return _current.get()


def emit(
    event: str, /, *, iteration: int | None = None, duration_ms: float | None = None, **data: Any
) -> None:
    log = _current.get()
    if log is not None:
        log.emit(event, iteration=iteration, duration_ms=duration_ms, **data)


@contextmanager
def span(event: str, *, iteration: int | None = None, **data: Any) -> Iterator[Span]:
    """`event`.start, then .end with what the body put into the span, or .error, and how long.

    The error goes on to the caller. Interruptions (Ctrl-C, cancellation) are errors here too:
    every .start has an end unless the process was killed.
    """
    started = time.perf_counter()
    emit(f"{event}.start", iteration=iteration, **data)
    outcome: Span = {}
    ending = "end"
    try:
        yield outcome
    except BaseException as error:
        ending = "error"
        outcome |= {"error": str(error), "error_type": type(error).__name__}
        raise
    finally:
        elapsed = 1000 * (time.perf_counter() - started)
        emit(f"{event}.{ending}", iteration=iteration, duration_ms=elapsed, **{**data, **outcome})


# --- reading --------------------------------------------------------------------------------------


def read_events(path: Path, *, after_seq: int = 0, limit: int = 100) -> list[Event]:
    """Return up to `limit` events after a sequence number, with long text and lists shortened."""
    return [
        event.model_copy(update={"data": shorten(event.data)})
        for event in _events_after(path, after_seq, limit)
    ]


def read_event(path: Path, seq: int) -> Event | None:
    return next((e for e in _events_after(path, seq - 1, 1) if e.seq == seq), None)


def last_event(path: Path) -> Event | None:
    """The newest event; None if there is none yet."""
    lines = lines_backward(path) if path.exists() else ()
    return next((event for line in lines if (event := _parse_event(line)) is not None), None)


def shorten(value: Any, text: int = SHORT_TEXT, items: int = SHORT_LIST) -> Any:
    """The value with long text and lists cut at any depth, saying what was left out."""
    if isinstance(value, str) and len(value) > text:
        return f"{value[:text]}... ({len(value)} characters)"
    if isinstance(value, list):
        short = [shorten(item, text, items) for item in value[:items]]
        return [*short, f"... ({len(value)} items)"] if len(value) > items else short
    if isinstance(value, dict):
        kept = {k: shorten(v, text, items) for k, v in list(value.items())[: 2 * items]}
        return {**kept, "...": f"{len(value)} keys"} if len(value) > 2 * items else kept
    return value


def _events_after(path: Path, seq: int, limit: int) -> Iterator[Event]:
    offset = _offset_before(path, seq)
    count = 0
    while count < limit:
        lines, following = read_from(path, offset)
        if following == offset:
            return
        offset = following
        for line in lines:
            event = _parse_event(line)
            if event is None or event.seq <= seq:
                continue
            yield event
            count += 1
            if count == limit:
                return


def _offset_before(path: Path, seq: int) -> int:
    """The start of a line at or before which every event's number is at most `seq`.

    Numbers rise through the file, so this is a binary search over byte offsets.
    """
    low = 0
    try:
        high = path.stat().st_size
    except OSError:
        return 0
    if seq <= 0:
        return 0
    while high - low > 1 << 16:
        middle = (low + high) // 2
        start, first = _first_event_from(path, middle, high)
        if first is None or first.seq > seq:
            high = middle
        else:
            low = start
    return low


def _first_event_from(path: Path, offset: int, end: int) -> tuple[int, Event | None]:
    """The first event whose line starts between two offsets, and that start."""
    with open_data(path, sys.maxsize) as stream:
        stream.seek(offset)
        stream.readline()  # the rest of a line that starts earlier
        while (start := stream.tell()) < end:
            event = _parse_event(stream.readline())
            if event is not None:
                return start, event
    return end, None


def _parse_event(line: bytes) -> Event | None:
    record = parse_line(line)
    if record is None:
        return None
    try:
        return Event.model_validate(record)
    except ValidationError:
        return None


def _to_json_value(value: Any) -> Any:
    """The value as JSON can hold it; NaN and infinity as text, because JSON has no such numbers."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        return {str(k): _to_json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json_value(item) for item in value]
    return str(value)
