"""An index of all sessions, so that a list of thousands costs one query.

The files are the truth: the index holds what was read off them, is brought up to date by looking
at the folders' times, and is made anew when it is missing or of another version. Every change to a
session replaces a file in its folder, and so changes the folder's time.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from p2p.api.rows import SessionRow, read_row
from p2p.settings import is_benchmark_case

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1
UNSETTLED = ("running", "pending", "queued", "paused")
"""A process may have died since: such rows are read again each time."""
Sort = Literal["created_at", "updated_at", "best_score", "env_id", "status", "cost_usd", "prompt"]

_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE session (
    session_id TEXT PRIMARY KEY, seen INTEGER NOT NULL, row TEXT NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL, status TEXT NOT NULL,
    env_id TEXT NOT NULL, prompt TEXT NOT NULL, alias TEXT NOT NULL, tags TEXT NOT NULL,
    starred INTEGER NOT NULL, best_score REAL, cost_usd REAL NOT NULL, deleted_at TEXT
);
CREATE INDEX by_creation ON session (deleted_at, created_at);
"""
_COLUMNS = (
    "session_id", "seen", "row", "created_at", "updated_at", "status", "env_id", "prompt",
    "alias", "tags", "starred", "best_score", "cost_usd", "deleted_at",
)  # fmt: skip
_INSERT = (
    f"INSERT OR REPLACE INTO session ({', '.join(_COLUMNS)}) "  # noqa: S608 - our own names
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
    deleted: bool = False
    sort: Sort = "created_at"
    descending: bool = True
    offset: int = 0
    limit: int = 50


class SessionIndex:
    """The sessions of a runs folder; any number of threads may use one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.path = runs_dir / ".index.sqlite"
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        runs_dir.mkdir(parents=True, exist_ok=True)
        self._database = self._open()

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
            database.execute("DROP TABLE IF EXISTS session")
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
            found = folders(self.runs_dir)
            with self._lock:
                known = {
                    row["session_id"]: (row["seen"], row["status"])
                    for row in self._database.execute(
                        "SELECT session_id, seen, status FROM session"
                    )
                }
            rows: list[dict[str, Any]] = []
            gone = known.keys() - found.keys()
            for session_id, (folder, changed) in found.items():
                seen, status = known.get(session_id, (None, ""))
                if seen == changed and status not in UNSETTLED:
                    continue
                row = read_row(session_id, folder)
                if row is not None:
                    rows.append(_values(row, changed))
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
            self._write([_values(row, 0)], set())

    def _write(self, rows: list[dict[str, Any]], gone: set[str]) -> None:
        with self._lock, _transaction(self._database):
            self._database.executemany(_INSERT, rows)
            self._database.executemany(
                "DELETE FROM session WHERE session_id = ?", [(name,) for name in gone]
            )

    # --- asking -----------------------------------------------------------------------------------

    def find(self, wanted: Wanted) -> tuple[list[SessionRow], int]:
        """A page of sessions, and how many there are in all."""
        where, values = _conditions(wanted)
        order = "DESC" if wanted.descending else "ASC"
        with self._lock:
            (total,) = self._database.execute(
                f"SELECT count(*) FROM session WHERE {where}",  # noqa: S608 - our own conditions
                values,
            ).fetchone()
            rows = self._database.execute(
                f"SELECT row FROM session WHERE {where} "  # noqa: S608
                f"ORDER BY {wanted.sort} IS NULL, {wanted.sort} {order}, session_id {order} "
                "LIMIT :limit OFFSET :offset",
                {**values, "limit": wanted.limit, "offset": wanted.offset},
            ).fetchall()
        return [SessionRow.model_validate_json(row["row"]) for row in rows], total


def folders(runs_dir: Path) -> dict[str, tuple[Path, int]]:
    """Every folder that may hold a session, by the session's id, and when it changed last."""
    found: dict[str, tuple[Path, int]] = {}
    for name, path, changed in _subfolders(runs_dir):
        if not name.startswith("bm_"):
            found[name] = (path, changed)
            continue
        for case, inside, then in _subfolders(path):
            if is_benchmark_case(f"{name}_{case}"):
                found[f"{name}_{case}"] = (inside, then)
    return found


def _subfolders(folder: Path) -> list[tuple[str, Path, int]]:
    found = []
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    for name in names:
        if name[0] != ".":
            with suppress(FileNotFoundError):  # only that one is gone
                path = folder / name
                found.append((name, path, path.stat().st_mtime_ns))
    return found


def _values(row: SessionRow, changed: int) -> dict[str, Any]:
    return {
        **row.model_dump(mode="json", include=set(_COLUMNS)),
        "seen": changed,
        "row": row.model_dump_json(),
        "tags": "".join(f"\n{tag}\n" for tag in row.tags),
    }


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


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
    for number, word in enumerate(wanted.text.lower().split()):
        field = f":word{number}"
        parts.append(
            f"(instr(lower(prompt), {field}) OR instr(lower(alias), {field}) "
            f"OR instr(lower(session_id), {field}) OR instr(lower(env_id), {field}))"
        )
        values[f"word{number}"] = word
    return " AND ".join(parts), values
