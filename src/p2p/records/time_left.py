"""How long a session may still take, by what its phases have taken so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from p2p.contracts import utc_now
from p2p.event_log import read_events
from p2p.records.session_view import training_left

if TYPE_CHECKING:
    from p2p.contracts import Event
    from p2p.records.session_view import SessionView

MOST_EVENTS = 10_000
JUDGING_SHARE = 0.25
"""Of the training's time, for judging and confirming: until an iteration has shown its own."""
MARGIN = 1.25
"""What is to come may be slower than what was measured: the machine has other work, too."""


@dataclass
class PhaseTimes:
    """How long the phases of a session's iterations took, in seconds."""

    training: dict[int, float] = field(default_factory=dict)
    other: dict[int, float] = field(default_factory=dict)
    """All but training, one after the other."""
    training_since: dict[int, datetime] = field(default_factory=dict)
    """When a training began that has not ended."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> PhaseTimes:
        """Return the phase times that a session's events record."""
        times = cls()
        for event in events:
            phase, _, moment = event.event.rpartition(".")
            number, milliseconds = event.iteration, event.duration_ms
            if number is None:
                continue
            if (phase, moment) == ("train", "start"):
                times.training_since[number] = event.timestamp
            elif milliseconds is not None:
                if phase == "train":
                    times.training_since.pop(number, None)
                of_kind = times.training if phase == "train" else times.other
                of_kind[number] = of_kind.get(number, 0.0) + milliseconds / 1000
        return times


def session_left(now: SessionView, at: datetime | None = None) -> float | None:
    """Seconds until a session ends at the latest; None before a training tells how fast it is.

    As if no further iteration passed, and each took as long as the longest one so far. Phases
    that no iteration has been through are taken to be as long as those before the training, and
    judging as a share of the training; a margin is added.
    """
    current = now.current
    if current is None or now.phase == "ended":
        return None
    number = current.number
    times = PhaseTimes.of(read_events(now.record.events_path, limit=MOST_EVENTS))
    left = 0.0
    if (since := times.training_since.get(number)) is not None:
        elapsed = max(0.0, ((at or utc_now()) - since).total_seconds())
        rest = training_left(current.runs, current.search)
        if rest is None and times.training:
            rest = max(0.0, max(times.training.values()) - elapsed)
        if rest is None:
            return None
        left = rest
        times.training[number] = times.training.get(number, 0.0) + elapsed + rest
    if not times.training:
        return None
    training, spent = max(times.training.values()), times.other.get(number, 0.0)
    earlier = [seconds for n, seconds in times.other.items() if n < number]
    other = max(earlier) if earlier else 2 * spent + JUDGING_SHARE * training
    left += max(0.0, other - spent)
    left += max(0, now.loop.max_iterations - number) * (training + other)
    left *= MARGIN
    if now.loop.max_minutes is not None:
        clock = now.record.clock.read()
        left = min(left, max(0.0, now.loop.max_minutes * 60 - (clock.seconds if clock else 0.0)))
    return left
