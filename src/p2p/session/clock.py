"""How long a session has been worked on, over all its processes, and when that is enough."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2p.records.loop_files import ClockReading
from p2p.session.endings import TimeExhausted
from p2p.session.request import minutes_to_resume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.records.iteration_record import SessionRecord
    from p2p.records.loop_files import SessionConfig


def worked_s(session: SessionRecord) -> float:
    """How long its processes have worked on a session, as its files say.

    Of a killed one, what counts is up to its last reading: a few seconds less than it took.
    """
    readings = (session.clock.read(), session.result.read())
    return max((reading.seconds for reading in readings if reading is not None), default=0.0)


@dataclass
class Clock:
    """The time of this process and of those before it; what lies between them does not count."""

    before_s: float = 0.0
    limit_s: float | None = None
    """When to stop; None: never."""
    started: float = field(default_factory=time.monotonic)
    _held_since: float | None = None

    @classmethod
    def of(cls, session: SessionRecord, config: SessionConfig) -> Clock:
        """A clock that goes on where the last process of the session has left off."""
        minutes = config.loop.max_minutes
        return cls(worked_s(session), None if minutes is None else minutes * 60)

    def seconds(self) -> float:
        """All of it."""
        now = time.monotonic() if self._held_since is None else self._held_since
        return round(self.before_s + now - self.started, 3)

    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self.limit_s is not None and self.seconds() >= self.limit_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """What happens in here takes no time: the user thinks."""
        self._held_since = time.monotonic()
        try:
            yield
        finally:
            self.started += time.monotonic() - self._held_since
            self._held_since = None

    def save(self, session: SessionRecord) -> None:
        """Note how late it is, for whoever follows if this process is killed."""
        session.clock.save(ClockReading(seconds=self.seconds()))


def time_exhausted(session: SessionRecord, config: SessionConfig, seconds: float) -> TimeExhausted:
    """What to say when the time is used up, and how to go on."""
    limit, more = config.loop.max_minutes or 0.0, minutes_to_resume(config, seconds)
    return TimeExhausted(
        f"its time of {limit:g} minute{'' if limit == 1 else 's'} is used up; "
        f"`p2p resume {session.session_id} --max-minutes {more:g}` resumes it"
    )
