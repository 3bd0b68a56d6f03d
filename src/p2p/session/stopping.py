"""How a session stops: by Ctrl-C, a signal, its status file, its time, or an error."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2p.contracts import StatusLiteral
from p2p.inference.question import (
    AskingCancelled,
    AuthenticationFailed,
    BudgetExhausted,
    InferenceError,
    RateLimited,
)
from p2p.records.loop_files import ClockReading
from p2p.records.session_view import SessionView
from p2p.records.statuses import CANCELLABLE
from p2p.sandbox import SandboxUnavailable
from p2p.settings import get_settings
from p2p.training.reward_function import EnvironmentFailed
from p2p.utils.subprocess_utils import kill_descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from p2p.contracts import SessionConfig
    from p2p.records.iteration_record import IterationRecord, SessionRecord

HEARTBEAT_S = 5.0
LOOK_S = 0.5
SAME_KEYSTROKE_S = 0.5
"""A second signal so soon after the first is the same wish, told by two processes."""
EXIT_KILLED = 137


class SessionBusy(Exception):
    """Another process works on this session."""


class SessionCancelled(Exception):
    """The session was asked to stop."""


class SessionPaused(Exception):
    """The session was asked to stop after an iteration."""


class TimeExhausted(Exception):
    """The session has been worked on for as long as it may be."""


class NoEnvironment(Exception):
    """None that is known can do what is asked, or not as it is asked."""


class InvalidCode(Exception):
    """No reward, or no judge, could be made to run; everything that was tried is kept."""


class JudgeUnavailable(Exception):
    """No judge could judge, also when asked again. The next attempt may be luckier."""


class TrainingUnavailable(Exception):
    """Training failed for a reason that no other reward would repair."""


_STATUS_OF: tuple[tuple[type[BaseException], StatusLiteral], ...] = (
    (KeyboardInterrupt, "cancelled"),
    (SessionCancelled, "cancelled"),
    (AskingCancelled, "cancelled"),
    (SessionPaused, "paused"),
    (BudgetExhausted, "budget_exhausted"),
    (TimeExhausted, "time_exhausted"),
    (RateLimited, "rate_limited"),
    (AuthenticationFailed, "auth_error"),
    (InvalidCode, "invalid_code"),
    (NoEnvironment, "error"),
    (EnvironmentFailed, "error"),
    (InferenceError, "error"),
    (JudgeUnavailable, "error"),
    (TrainingUnavailable, "error"),
    (SandboxUnavailable, "error"),
    (OSError, "error"),
)
"""The first that fits counts. What is not in here is a fault of ours and goes on to the caller."""


def is_expected(error: BaseException) -> bool:
    return any(isinstance(error, kind) for kind, _ in _STATUS_OF)


def status_of(error: BaseException) -> StatusLiteral:
    return next((status for kind, status in _STATUS_OF if isinstance(error, kind)), "error")


def caused_by_interrupt(error: BaseException) -> bool:
    """Return whether an interrupt caused this error, as in a C module's import."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def message_of(error: BaseException) -> str:
    if status_of(error) == "cancelled":
        return "cancelled by user"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full: {error.filename or 'the runs folder'}"
    if is_expected(error):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"


# --- signals and cancels --------------------------------------------------------------------------


def cancel(session: SessionRecord) -> list[tuple[int, float | None]] | None:
    """Tell a session to end, from another process; None if there is nothing to end.

    Gives the processes that were told, with the times they started.
    """
    parts = [session, *_runs(session)]
    before = [part.read_status() for part in parts]
    cancelled = [part.set_status_if("cancelled", CANCELLABLE) for part in parts]
    if not any(cancelled):
        return None
    return [
        (status.pid, status.pid_started)
        for status, hit in zip(before, cancelled, strict=True)
        if hit and status is not None and status.pid is not None
    ]


def cancel_trainings(session: SessionRecord) -> None:
    """Tell what a killed process of the session has left running to end."""
    for run in _runs(session):
        run.set_status_if("cancelled", CANCELLABLE)


def _runs(session: SessionRecord) -> list[IterationRecord]:
    """A training outlives a session that was killed: it hears of a cancel in its own file."""
    return [run for iteration in session.iteration_records() for run in iteration.runs()]


class StopSwitch:
    """Whether this session was asked to stop.

    Asked once, whatever the main thread waits for is interrupted with KeyboardInterrupt, except
    inside of `suspend_interrupts`, where the code polls `is_cancelled`. Asked twice, the process
    ends on the spot and takes everything with it that it has started.
    """

    def __init__(self) -> None:
        self.interrupted = False
        """Whether a signal from outside asked: Ctrl-C, a notebook's interrupt or SIGTERM."""
        self._woken = False
        self._asked_at: float | None = None
        self._time_is_over = False
        self._ringing = False
        self._polled = 0
        self._has_signals = False

    def is_cancelled(self) -> bool:
        return self._asked_at is not None or self._time_is_over

    @property
    def out_of_time(self) -> bool:
        """Whether it is to stop for want of time alone: what the user says counts more."""
        return self._time_is_over and self._asked_at is None

    def check(self) -> None:
        """Raise SessionCancelled if it is time to stop."""
        if self.is_cancelled():
            raise SessionCancelled

    @contextmanager
    def suspend_interrupts(self) -> Iterator[None]:
        """Raise no interrupt inside: the code polls `is_cancelled`, or is short."""
        self._polled += 1
        try:
            yield
        finally:
            self._polled -= 1

    def ask(self) -> None:
        """Ask from another thread, for the user."""
        if self._asked_at is not None:
            return
        if self._has_signals:
            self._woken = True
            _wake_main_thread()
        else:
            self._asked_at = time.monotonic()

    def stop_for_time(self) -> None:
        """Stop the session from another thread, because its time is used up."""
        if self.is_cancelled():
            return
        self._time_is_over = True
        if self._has_signals:
            self._ringing = True
            _wake_main_thread()

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle Ctrl-C and SIGTERM; only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self._handle_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        self._has_signals = True
        try:
            yield
        finally:
            self._has_signals = False
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        now, stopping = time.monotonic(), self._time_is_over
        self.interrupted |= not self._woken and not self._ringing
        if self._ringing and number == signal.SIGTERM:
            self._ringing = stopping = False
        elif self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at > SAME_KEYSTROKE_S:
            kill_descendants()
            os._exit(EXIT_KILLED)
        else:
            return
        if not self._polled and not stopping:
            raise KeyboardInterrupt


def _wake_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGTERM)


# --- time -----------------------------------------------------------------------------------------


def read_worked_seconds(session: SessionRecord) -> float:
    """Return the seconds that processes have worked on a session, read from its files.

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
    _paused_since: float | None = None

    @classmethod
    def of(cls, session: SessionRecord, config: SessionConfig) -> Clock:
        """Return a clock that continues from the session's last process."""
        minutes = config.loop.max_minutes
        return cls(read_worked_seconds(session), None if minutes is None else minutes * 60)

    def seconds(self) -> float:
        now = time.monotonic() if self._paused_since is None else self._paused_since
        return round(self.before_s + now - self.started, 3)

    def is_over(self) -> bool:
        return self.limit_s is not None and self.seconds() >= self.limit_s

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock inside of the context."""
        self._paused_since = time.monotonic()
        try:
            yield
        finally:
            self.started += time.monotonic() - self._paused_since
            self._paused_since = None

    def save(self, session: SessionRecord) -> None:
        """Note how late it is, for whoever follows if this process is killed."""
        session.clock.save(ClockReading(seconds=self.seconds()))


def make_time_exhausted(session: SessionRecord, config: SessionConfig) -> TimeExhausted:
    """Return the error of a used-up time limit, which tells how to resume."""
    limit = config.loop.max_minutes or 0.0
    return TimeExhausted(
        f"its time of {limit:g} minute{'' if limit == 1 else 's'} is used up; "
        f"`{resume_command(session)}` gives it as much again"
    )


def resume_command(session: SessionRecord) -> str:
    """What to type to resume a session, with the options without which nothing would be done."""
    config, options = session.config.read(), ""
    if config is not None:
        iterations = SessionView(session).iterations.values()
        judged = [each.number for each in iterations if each.judgment]
        if max(judged, default=0) >= config.loop.max_iterations:
            options = f" --iterations {config.loop.max_iterations + 1}"
    return f"p2p resume {command_name(session)}{options}"


def command_name(session: SessionRecord) -> str:
    """What commands call a session: its id, or its folder where it is not in the usual place."""
    usual = session.path.parent == get_settings().runs_dir
    return session.session_id if usual else shlex.quote(str(session.path))


@contextmanager
def heartbeat(session: SessionRecord, switch: StopSwitch, clock: Clock) -> Iterator[None]:
    """Write the session's heartbeat and elapsed time, and check for a stop, in the context."""
    ended = threading.Event()

    def beat() -> None:
        touched = 0.0
        while not ended.wait(LOOK_S):
            status = session.read_status()
            if status is not None and status.status == "cancelled":
                switch.ask()
            if clock.is_over():
                switch.stop_for_time()
            if time.monotonic() - touched > HEARTBEAT_S:
                touched = time.monotonic()
                session.touch_heartbeat()
                with suppress(OSError):  # a full disk must not keep it from hearing a cancel
                    clock.save(session)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
