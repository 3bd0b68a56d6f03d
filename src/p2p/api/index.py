"""An index of all sessions, so that a list of thousands costs one query.

The files are the truth: the index holds what was read from them, is brought up to date by looking
at the folders' times, and is made anew when it is missing or of another version. Every change to a
session replaces a file in its folder, and so changes the folder's time.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from p2p.api.schemas import SessionRow
from p2p.api.views import read_row, run_names
from p2p.records.iteration_record import SessionRecord
from p2p.records.statuses import CANCELLABLE
from p2p.scheduler.store import transaction
from p2p.settings import is_benchmark_case

VERSION = 7
READ_AGAIN = 0
"""In place of the time of a folder that is to be read at the next refresh."""
Sort = Literal["created_at", "updated_at", "best_score", "env_id", "status", "cost_usd", "prompt"]

_COLUMNS = {
    "session_id": "TEXT PRIMARY KEY", "changed": "INTEGER NOT NULL", "created_at": "TEXT NOT NULL",
    "updated_at": "TEXT NOT NULL", "status": "TEXT NOT NULL", "env_id": "TEXT NOT NULL",
    "prompt": "TEXT NOT NULL", "searched": "TEXT NOT NULL", "tags": "TEXT NOT NULL",
    "starred": "INTEGER NOT NULL", "best_score": "REAL", "cost_usd": "REAL NOT NULL",
    "deleted_at": "TEXT",
}  # fmt: skip
_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE session ({", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())});
CREATE INDEX by_creation ON session (deleted_at, created_at, session_id);
CREATE TABLE line (session_id TEXT PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE run (
    session_id TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (session_id, name)
) WITHOUT ROWID;
"""
"""What is searched and sorted is apart from the whole rows, so that a scan passes little."""
_TABLES = ("session", "line", "run")
_INSERT = f"INSERT INTO session VALUES ({', '.join(':' + name for name in _COLUMNS)})"  # noqa: S608 - our own names


class SessionQuery(BaseModel):
    """Which sessions, in which order: what `GET /api/sessions` may be asked."""

    model_config = ConfigDict(frozen=True)

    q: Annotated[str, Field(max_length=200, description="words of the prompt, name or id")] = ""
    status: Annotated[str, Field(max_length=40)] = ""
    env_id: Annotated[str, Field(max_length=200)] = ""
    tag: Annotated[str, Field(max_length=50)] = ""
    starred: bool | None = None
    cases: Annotated[
        bool | None, Field(description="sessions of benchmarks: only them, or none of them")
    ] = None
    sort: Sort = "created_at"
    order: Literal["asc", "desc"] = "desc"
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 50

    def conditions(self, *, deleted: bool) -> tuple[str, dict[str, Any]]:
        """The WHERE clause and its values."""
        parts = [f"deleted_at IS {'NOT ' if deleted else ''}NULL"]
        values: dict[str, Any] = {}
        for name in ("status", "env_id", "starred"):
            value = getattr(self, name)
            if value not in ("", None):
                parts.append(f"{name} = :{name}")
                values[name] = value
        if self.tag:
            parts.append("instr(tags, :tag) > 0")
            values["tag"] = f"\n{self.tag}\n"
        if self.cases is not None:
            parts.append(f"session_id {'' if self.cases else 'NOT'} GLOB 'bm_*_case*'")
        for number, word in enumerate(self.q.lower().split()):
            parts.append(f"instr(searched, :word{number}) > 0")
            values[f"word{number}"] = word
        return " AND ".join(parts), values


class SessionIndex:
    """The sessions of a runs folder; any number of threads may use one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.path = runs_dir / ".index.sqlite"
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        runs_dir.mkdir(parents=True, exist_ok=True)
        self._database = self._open()
        rows = self._database.execute("SELECT session_id, changed FROM session")
        self._known = {row["session_id"]: row["changed"] for row in rows}
        """The time of each folder when it was read."""

    def _open(self) -> sqlite3.Connection:
        if self.path.is_symlink():
            self.path.unlink()
        try:
            return self._checked()
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):  # it is made of files that are still there
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            return self._checked()

    def _checked(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            for table in _TABLES:
                database.execute(f"DROP TABLE IF EXISTS {table}")
            database.executescript(_SCHEMA)
        return database

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def refresh(self) -> None:
        """Read again what has changed. Whoever asks meanwhile sees what was there before."""
        with self._refreshing:
            folders, known = session_folders(self.runs_dir), self._known.copy()
            rows: list[tuple[SessionRow, Path, int]] = []
            gone = known.keys() - folders.keys()
            for session_id, (path, changed) in folders.items():
                if known.get(session_id) == changed:
                    continue
                row = read_row(session_id, Path(path))
                if row is not None:
                    # A process may have died since: what can still be cancelled is read each time.
                    settled = row.status not in CANCELLABLE
                    rows.append((row, Path(path), changed if settled else READ_AGAIN))
                elif session_id in known:
                    gone.add(session_id)
            self._write(rows, gone)

    def refresh_one(self, session_id: str, folder: Path) -> None:
        """Take over at once what was done to one session."""
        row = read_row(session_id, folder)
        self._write([(row, folder, READ_AGAIN)] if row else [], set() if row else {session_id})

    def _write(self, rows: list[tuple[SessionRow, Path, int]], gone: set[str]) -> None:
        if not rows and not gone:
            return
        replaced = [(name,) for name in (*gone, *(row.session_id for row, _, _ in rows))]
        runs = [(row.session_id, name) for row, folder, _ in rows for name in run_names(folder)]
        lines = [(row.session_id, row.model_dump_json()) for row, _, _ in rows]
        values = [_values(row, changed) for row, _, changed in rows]
        with self._lock, transaction(self._database) as database:
            for table in _TABLES:
                database.executemany(
                    f"DELETE FROM {table} WHERE session_id = ?",  # noqa: S608 - our own names
                    replaced,
                )
            database.executemany(_INSERT, values)
            database.executemany("INSERT INTO line (session_id, row) VALUES (?, ?)", lines)
            database.executemany("INSERT INTO run (session_id, name) VALUES (?, ?)", runs)
            for name in gone:
                self._known.pop(name, None)
            for row, _, changed in rows:
                self._known[row.session_id] = changed

    def find(self, query: SessionQuery, *, deleted: bool = False) -> tuple[list[SessionRow], int]:
        """A page of sessions, and how many there are in all; `deleted`: of those in the trash."""
        texts, total = self.find_json(query, deleted=deleted)
        return [SessionRow.model_validate_json(text) for text in texts], total

    def find_json(self, query: SessionQuery, *, deleted: bool = False) -> tuple[list[str], int]:
        """The same, each session as JSON."""
        where, values = query.conditions(deleted=deleted)
        unknown_last = f"{query.sort} IS NULL, " if query.sort == "best_score" else ""
        with self._lock:
            (total,) = self._database.execute(
                f"SELECT count(*) FROM session WHERE {where}",  # noqa: S608 - our own conditions
                values,
            ).fetchone()
            names = self._database.execute(
                f"SELECT session_id FROM session WHERE {where} "  # noqa: S608
                f"ORDER BY {unknown_last}{query.sort} {query.order}, session_id {query.order} "
                "LIMIT :limit OFFSET :offset",
                {**values, "limit": query.limit, "offset": query.offset},
            ).fetchall()
            line = "SELECT row FROM line WHERE session_id = ?"
            rows = [self._database.execute(line, tuple(name)).fetchone() for name in names]
        return [row["row"] for row in rows], total

    def newest_with(self, run: str | None = None, limit: int = 1) -> list[str]:
        """The newest sessions, not in the trash, that have a run or iteration of this name.

        Of any name where none is given.
        """
        with self._lock:
            rows = self._database.execute(
                "SELECT session_id FROM session WHERE deleted_at IS NULL AND EXISTS "
                "(SELECT 1 FROM run WHERE run.session_id = session.session_id "
                "AND name = coalesce(?, name)) ORDER BY created_at DESC LIMIT ?",
                (run, limit),
            ).fetchall()
        return [str(row["session_id"]) for row in rows]


def session_folders(runs_dir: Path) -> dict[str, tuple[str, int]]:
    """Every folder that may hold a session, by the session's id, and when it changed last."""
    folders: dict[str, tuple[str, int]] = {}
    for name, path, changed in _subfolders(str(runs_dir)):
        if not name.startswith("bm_"):
            folders[name] = (path, changed)
            continue
        if SessionRecord(Path(path)).read_metadata().deleted_at is not None:
            continue  # its cases are in the trash with it
        for case, case_path, case_changed in _subfolders(path):
            if is_benchmark_case(f"{name}_{case}"):
                folders[f"{name}_{case}"] = (case_path, case_changed)
    return folders


def _subfolders(folder: str) -> list[tuple[str, str, int]]:
    """Names, paths and times; written for thousands of them, every second."""
    subfolders = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name[0] != "." and entry.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # only that one is gone
                        subfolders.append((entry.name, entry.path, entry.stat().st_mtime_ns))
    except FileNotFoundError:
        return []
    return subfolders


def _values(row: SessionRow, changed: int) -> dict[str, Any]:
    searched = (row.prompt, row.alias, row.session_id, row.env_id)
    return {
        **row.model_dump(mode="json", include=set(_COLUMNS)),
        "changed": changed,
        "searched": "\n".join(searched).lower(),
        "tags": "".join(f"\n{tag}\n" for tag in row.tags),
    }
