"""How a session can end early, and which status says so: one table."""

from __future__ import annotations

import errno

from p2p.contracts import StatusLiteral
from p2p.inference.question import (
    AskingCancelled,
    AuthenticationFailed,
    BudgetExhausted,
    InferenceError,
    RateLimited,
)
from p2p.sandbox import SandboxUnavailable


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
    """Whether something was interrupted and made another error of it, as a C module's import."""
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
