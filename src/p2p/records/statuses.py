"""What each status means: one table, and the sets and codes that are read off it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from p2p.contracts import StatusLiteral

Outcome = Literal["passed", "unverified", "not_passed", "error", "unfinished", "not_run"]
"""unverified: it meets every criterion, but something that the prompt asks was not measured. error:
it ended without a verdict, as when its author could make nothing of the prompt."""


@dataclass(frozen=True)
class StatusMeaning:
    """One row of the table."""

    stage: Literal["waiting", "active", "ended", "unknown"]
    outcome: Outcome
    """What a session with this status has come to."""
    exit_code: int | None = None
    """Of a process that worked on a session; None where none ends like this."""
    colour: str = "red"
    words: str = ""
    """What people read; empty: the status itself."""


STATUS: dict[StatusLiteral, StatusMeaning] = {
    "pending": StatusMeaning("waiting", "not_run"),
    "queued": StatusMeaning("waiting", "not_run"),
    "running": StatusMeaning("active", "unfinished", colour="cyan"),
    "unknown": StatusMeaning("unknown", "not_run"),
    # A training run.
    "completed": StatusMeaning("ended", "unfinished", colour="green"),
    "failed": StatusMeaning("ended", "error"),
    "stale": StatusMeaning("ended", "unfinished", words="process gone"),
    # A session.
    "passed": StatusMeaning("ended", "passed", 0, "green"),
    "unverified": StatusMeaning("ended", "unverified", 11, "magenta"),
    "error": StatusMeaning("ended", "error", 1),
    "max_iterations": StatusMeaning("ended", "not_passed", 3, "yellow", "not passed"),
    "paused": StatusMeaning("ended", "unfinished", 4, "cyan"),
    "rate_limited": StatusMeaning("ended", "unfinished", 5, "yellow", "rate limited"),
    "auth_error": StatusMeaning("ended", "unfinished", 6, words="key refused"),
    "invalid_code": StatusMeaning("ended", "error", 7, words="no working code"),
    "budget_exhausted": StatusMeaning("ended", "not_passed", 8, "yellow", "out of budget"),
    "time_exhausted": StatusMeaning("ended", "not_passed", 10, "yellow", "out of time"),
    "cancelled": StatusMeaning("ended", "unfinished", 130, "yellow"),
    # A stage of a benchmark.
    "gate_passed": StatusMeaning("unknown", "unfinished"),
    "gate_failed": StatusMeaning("unknown", "unfinished"),
}


def status_words(status: StatusLiteral) -> str:
    """Return what people read for a status: `not passed` for `max_iterations`."""
    return STATUS[status].words or status


ENDED = frozenset(status for status, row in STATUS.items() if row.stage == "ended")
UNFINISHED = frozenset(s for s, row in STATUS.items() if row.stage in ("waiting", "active"))
"""Of a training run that is under way or waits for its turn."""
CANCELLABLE: frozenset[StatusLiteral] = UNFINISHED | {"paused"}
EXIT_CODES: dict[StatusLiteral, int] = {
    status: row.exit_code for status, row in STATUS.items() if row.exit_code is not None
}
"""Of a process that runs a session; EXIT_BAD_INPUT and EXIT_BUSY where it could not begin."""
EXIT_BAD_INPUT, EXIT_BUSY = 2, 9
FINAL: frozenset[StatusLiteral] = frozenset({"passed", "unverified"})
"""Every criterion is met: only feedback leaves something to do."""
RESUMABLE = frozenset({*EXIT_CODES, "stale"}) - FINAL
