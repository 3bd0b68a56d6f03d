"""A session in a line: what lists show, and what they can be searched and sorted by."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from p2p.contracts import Record, Score, StatusLiteral
from p2p.records.iteration_record import SessionRecord

if TYPE_CHECKING:
    from pathlib import Path


class SessionRow(Record):
    """A session in a list."""

    session_id: str
    prompt: str = ""
    env_id: str = ""
    status: StatusLiteral
    error: str = ""
    best_score: Score | None = None
    confirmed_score: Score | None = None
    best_iteration: int | None = None
    iterations: int = 0
    max_iterations: int | None = None
    model: str = ""
    cost_usd: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    created_at: datetime
    updated_at: datetime
    alias: str = ""
    starred: bool = False
    tags: tuple[str, ...] = ()
    deleted_at: datetime | None = None


def is_session(folder: Path) -> bool:
    """Whether a folder holds a session or plain training runs."""
    return (folder / "session.json").is_file() or any(folder.glob("iter_*/"))


def read_row(session_id: str, folder: Path) -> SessionRow | None:
    """A session's line, read off its files; None if there is none."""
    if not is_session(folder):
        return None
    try:
        touched = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except FileNotFoundError:  # removed at this moment
        return None
    record = SessionRecord(folder)
    asked, result, told = record.config.read(), record.result.read(), record.read_status()
    metadata, iterations = record.read_metadata(), record.iteration_records()
    config = iterations[0].read_config() if iterations and asked is None else None
    return SessionRow(
        session_id=session_id,
        prompt=asked.prompt if asked else "",
        env_id=asked.env_id if asked else str((config or {}).get("env_id", "")),
        status=record.derive_status(),
        error=(told.error or "") if told else "",
        best_score=result.score if result else None,
        confirmed_score=result.confirmed_score if result else None,
        best_iteration=result.best_iteration if result else None,
        iterations=len(iterations),
        max_iterations=asked.loop.max_iterations if asked else None,
        model=asked.loop.model if asked else "",
        cost_usd=result.cost_usd if result else 0.0,
        tokens=result.tokens if result else 0,
        seconds=result.seconds if result else 0.0,
        created_at=asked.created_at if asked else touched,
        updated_at=told.updated_at if told else touched,
        **metadata.model_dump(),
    )


def run_names(folder: Path) -> tuple[str, ...]:
    """The names of a session's iterations and of the training runs in them, each once."""
    iterations = SessionRecord(folder).iteration_records()
    names = (each.iteration_id for found in iterations for each in (found, *found.runs()))
    return tuple(dict.fromkeys(names))
