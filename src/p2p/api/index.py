"""An index of all sessions, so that a list of thousands costs one query.

The files are the truth: the index holds what was read off them, is brought up to date by looking
at the folders' times, and is made anew when it is missing or of another version. Every change to a
session replaces a file in its folder, and so changes the folder's time.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from p2p.api.rows import SessionRow, read_row, run_names
from p2p.records.iteration_record import SessionRecord
from p2p.scheduler.store import transaction
from p2p.settings import is_benchmark_case

VERSION = 3
UNSETTLED = ("running", "pending", "queued", "paused")
"""A process may have died since: such rows are read again each time."""
Sort = Literal["created_at", "updated_at", "best_score", "env_id", "status", "cost_usd", "prompt"]

_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE session (
    session_id TEXT PRIMARY KEY, seen INTEGER NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL, status TEXT NOT NULL,
    env_id TEXT NOT NULL, prompt TEXT NOT NULL, searched TEXT NOT NULL, tags TEXT NOT NULL,
    starred INTEGER NOT NULL, best_score REAL, cost_usd REAL NOT NULL, deleted_at TEXT
);
CREATE INDEX by_creation ON session (deleted_at, created_at, session_id);
CREATE TABLE line (session_id TEXT PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE run (
    session_id TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (session_id, name)
) WITHOUT ROWID;
"""
"""What is searched and sorted is apart from the whole rows, so that a scan passes little."""
_TABLES = ("session", "line", "run")
_COLUMNS = (
    "session_id", "seen", "created_at", "updated_at", "status", "env_id", "prompt", "searched",
    "tags", "starred", "best_score", "cost_usd", "deleted_at",
)  # fmt: skip
_INSERT = (
    f"INSERT INTO session ({', '.join(_COLUMNS)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join(':' + name for name in _COLUMNS)})"
)


@dataclass(frozen=True)
class Wanted:
    """Which sessions, in which order."""

    text: str = ""
    status: str = ""
    env_id: str = ""
    tag: str = ""
    starred: bool | None = None
    cases: bool | None = None
    """Those of benchmarks: only them, or none of them."""
    deleted: bool = False
    sort: Sort = "created_at"
    descending: bool = True
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True)
class Found:
    """A session as it goes into the index."""

    values: dict[str, Any]
    line: str
    """The whole row, as JSON."""
    runs: tuple[str, ...]
    """The names of its iterations and of their training runs."""

    @property
    def session_id(self) -> str:
        """Whose they are."""
        return str(self.values["session_id"])


class SessionIndex:
    """The sessions of a runs folder; any number of threads may use one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.path = runs_dir / ".index.sqlite"
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        runs_dir.mkdir(parents=True, exist_ok=True)
        self._database = self._open()
        rows = self._database.execute("SELECT session_id, seen, status FROM session")
        self._known = {row["session_id"]: (row["seen"], row["status"]) for row in rows}
        """When each folder had changed that was read, and how its session stood."""

    def _open(self) -> sqlite3.Connection:
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
        """Let go of the file."""
        with self._lock:
            self._database.close()

    # --- bringing it up to date -------------------------------------------------------------------

    def refresh(self) -> None:
        """Read again what has changed. Whoever asks meanwhile sees what was there before."""
        with self._refreshing:
            found, known = folders(self.runs_dir), self._known.copy()
            rows: list[Found] = []
            gone = known.keys() - found.keys()
            for session_id, (where, changed) in found.items():
                seen, status = known.get(session_id, (None, ""))
                if seen == changed and status not in UNSETTLED:
                    continue
                folder = Path(where)
                row = read_row(session_id, folder)
                if row is not None:
                    rows.append(_found(row, changed, folder))
                elif session_id in known:
                    gone.add(session_id)
            self._write(rows, gone)

    def refresh_one(self, session_id: str, folder: Path) -> None:
        """Take over at once what was done to one session."""
        row = read_row(session_id, folder)
        if row is None:
            self._write([], {session_id})
        else:
            # Read before this look, it is at worst read once more.
            self._write([_found(row, 0, folder)], set())

    def _write(self, found: list[Found], gone: set[str]) -> None:
        if not found and not gone:
            return
        again = [*gone, *(each.session_id for each in found)]
        runs = [(each.session_id, name) for each in found for name in each.runs]
        lines = [(each.session_id, each.line) for each in found]
        with self._lock, transaction(self._database) as database:
            for table in _TABLES:
                database.executemany(
                    f"DELETE FROM {table} WHERE session_id = ?",  # noqa: S608 - our own names
                    [(name,) for name in again],
                )
            database.executemany(_INSERT, [each.values for each in found])
            database.executemany("INSERT INTO line (session_id, row) VALUES (?, ?)", lines)
            database.executemany("INSERT INTO run (session_id, name) VALUES (?, ?)", runs)
            for name in gone:
                self._known.pop(name, None)
            for each in found:
                self._known[each.session_id] = (each.values["seen"], each.values["status"])

    # --- asking -----------------------------------------------------------------------------------

    def find(self, wanted: Wanted) -> tuple[list[SessionRow], int]:
        """A page of sessions, and how many there are in all."""
        texts, total = self.find_json(wanted)
        return [SessionRow.model_validate_json(text) for text in texts], total

    def find_json(self, wanted: Wanted) -> tuple[list[str], int]:
        """The same, each session as JSON."""
        where, values = _conditions(wanted)
        order = "DESC" if wanted.descending else "ASC"
        unknown_last = f"{wanted.sort} IS NULL, " if wanted.sort == "best_score" else ""
        with self._lock:
            (total,) = self._database.execute(
                f"SELECT count(*) FROM session WHERE {where}",  # noqa: S608 - our own conditions
                values,
            ).fetchone()
            names = self._database.execute(
                f"SELECT session_id FROM session WHERE {where} "  # noqa: S608
                f"ORDER BY {unknown_last}{wanted.sort} {order}, session_id {order} "
                "LIMIT :limit OFFSET :offset",
                {**values, "limit": wanted.limit, "offset": wanted.offset},
            ).fetchall()
            query = "SELECT row FROM line WHERE session_id = ?"
            rows = [self._database.execute(query, tuple(name)).fetchone() for name in names]
        return [row["row"] for row in rows], total

    def newest_with(self, run: str) -> str | None:
        """The newest session, not in the trash, that has a training run of this name."""
        with self._lock:
            found = self._database.execute(
                "SELECT session_id FROM session WHERE deleted_at IS NULL AND EXISTS "
                "(SELECT 1 FROM run WHERE run.session_id = session.session_id AND name = ?) "
                "ORDER BY created_at DESC LIMIT 1",
                (run,),
            ).fetchone()
        return None if found is None else str(found["session_id"])


def folders(runs_dir: Path) -> dict[str, tuple[str, int]]:
    """Every folder that may hold a session, by the session's id, and when it changed last."""
    found: dict[str, tuple[str, int]] = {}
    for name, path, changed in _subfolders(str(runs_dir)):
        if not name.startswith("bm_"):
            found[name] = (path, changed)
            continue
        if SessionRecord(Path(path)).read_metadata().deleted_at is not None:
            continue  # its cases are in the trash with it
        for case, inside, then in _subfolders(path):
            if is_benchmark_case(f"{name}_{case}"):
                found[f"{name}_{case}"] = (inside, then)
    return found


def _subfolders(folder: str) -> list[tuple[str, str, int]]:
    """Names, paths and times; written for thousands of them, every second."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name[0] != "." and entry.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # only that one is gone
                        found.append((entry.name, entry.path, entry.stat().st_mtime_ns))
    except FileNotFoundError:
        return []
    return found


def _found(row: SessionRow, changed: int, folder: Path) -> Found:
    searched = (row.prompt, row.alias, row.session_id, row.env_id)
    values = {
        **row.model_dump(mode="json", include=set(_COLUMNS)),
        "seen": changed,
        "searched": "\n".join(searched).lower(),
        "tags": "".join(f"\n{tag}\n" for tag in row.tags),
    }
    return Found(values, row.model_dump_json(), run_names(folder))


def _conditions(wanted: Wanted) -> tuple[str, Mapping[str, Any]]:
    parts = ["deleted_at IS NOT NULL" if wanted.deleted else "deleted_at IS NULL"]
    values: dict[str, Any] = {}
    for name in ("status", "env_id"):
        if value := getattr(wanted, name):
            parts.append(f"{name} = :{name}")
            values[name] = value
    if wanted.tag:
        parts.append("instr(tags, :tag) > 0")
        values["tag"] = f"\n{wanted.tag}\n"
    if wanted.starred is not None:
        parts.append("starred = :starred")
        values["starred"] = int(wanted.starred)
    if wanted.cases is not None:
        parts.append(f"session_id {'' if wanted.cases else 'NOT'} GLOB 'bm_*_case*'")
    for number, word in enumerate(wanted.text.lower().split()):
        parts.append(f"instr(searched, :word{number}) > 0")
        values[f"word{number}"] = word
    return " AND ".join(parts), values
