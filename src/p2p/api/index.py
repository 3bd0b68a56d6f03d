"""The sessions of a runs folder, kept in memory: a list of thousands reads no files.

The files are the truth: what was read of a session is kept until its folder's time changes. Every
change to a session replaces a file in its folder, and so changes the folder's time.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from p2p.files import is_session
from p2p.records.iteration_record import SessionRecord
from p2p.records.session_view import SessionView
from p2p.records.statuses import CANCELLABLE
from p2p.records.summaries import SessionRow
from p2p.settings import is_benchmark_case

READ_AGAIN = 0
"""In place of the time of a folder that is to be read at the next refresh."""
Sort = Literal["created_at", "updated_at", "best_score", "env_id", "status", "cost_usd", "prompt"]
SORTED = set(get_args(Sort))


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

    def select(self, entries: list[IndexEntry]) -> list[IndexEntry]:
        """The entries that match the query."""
        row_equals = {name: getattr(self, name) for name in ("status", "env_id", "starred")}
        for name, value in row_equals.items():
            if value not in ("", None):
                entries = [each for each in entries if getattr(each.row, name) == value]
        if self.tag:
            entries = [each for each in entries if self.tag in each.row.tags]
        if self.cases is not None:
            entries = [each for each in entries if each.is_case == self.cases]
        for word in self.q.lower().split():
            entries = [each for each in entries if word in each.searched]
        return entries

    def sort_entries(self, entries: list[IndexEntry]) -> list[IndexEntry]:
        """Sort entries in the requested order; unknown scores are last in either direction."""
        name, down = self.sort, self.order == "desc"
        rest: list[IndexEntry] = []
        if name == "best_score":
            rest = [each for each in entries if each.row.best_score is None]
            entries = [each for each in entries if each.row.best_score is not None]
        rest.sort(key=lambda each: each.row.session_id, reverse=down)
        return sorted(entries, key=lambda each: each.keys[name], reverse=down) + rest


@dataclass(frozen=True)
class IndexEntry:
    """A session as it was read."""

    row: SessionRow
    json: str
    keys: dict[str, tuple[Any, str]]
    """What it is sorted by, then its id; times as text, which is quicker to compare."""
    searched: str
    names: frozenset[str]
    """Of its iterations and training runs."""
    is_case: bool
    changed: int
    """The time of its folder when it was read."""


def read_entry(session_id: str, folder: Path, changed: int) -> IndexEntry | None:
    """Read a session; None if there is none."""
    if not is_session(folder):
        return None
    record = SessionRecord(folder)
    row = SessionRow.model_validate(SessionView(record))
    iterations = record.iteration_records()
    sortable = row.model_dump(mode="json", include=SORTED)
    return IndexEntry(
        row=row,
        json=row.model_dump_json(),
        keys={name: (value, session_id) for name, value in sortable.items()},
        searched=f"{row.prompt}\n{row.alias}\n{session_id}\n{row.env_id}".lower(),
        names=frozenset(run.iteration_id for each in iterations for run in (each, *each.runs())),
        is_case=is_benchmark_case(session_id),
        # A process may have died since: what can still be cancelled is read each time.
        changed=READ_AGAIN if row.status in CANCELLABLE else changed,
    )


class SessionIndex:
    """The sessions of a runs folder; any number of threads may use one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._entries: dict[str, IndexEntry] = {}
        self._refreshing, self._reading = threading.Lock(), threading.Lock()
        runs_dir.mkdir(parents=True, exist_ok=True)

    def refresh(self) -> None:
        """Read again what has changed, the newest first; lists show meanwhile what is known."""
        with self._refreshing:
            folders = session_folders(self.runs_dir)
            for name in self._entries.keys() - folders.keys():
                self._entries.pop(name, None)
            for name, (path, changed) in sorted(folders.items(), reverse=True):
                known = self._entries.get(name)
                if known is None or known.changed != changed:
                    self._read(name, Path(path), changed)

    def refresh_one(self, session_id: str, folder: Path) -> None:
        """Reread one session at once."""
        self._read(session_id, folder, READ_AGAIN)

    def _read(self, session_id: str, folder: Path, changed: int) -> None:
        with self._reading:  # else what was read before a change could be stored after it
            entry = read_entry(session_id, folder, changed)
            if entry is not None:
                self._entries[session_id] = entry
            else:
                self._entries.pop(session_id, None)

    def find(self, query: SessionQuery, *, deleted: bool = False) -> tuple[list[IndexEntry], int]:
        """A page of sessions, and how many there are in all; `deleted`: of those in the trash."""
        every = [e for e in self._list_entries() if (e.row.deleted_at is not None) == deleted]
        entries = query.sort_entries(query.select(every))
        return entries[query.offset : query.offset + query.limit], len(entries)

    def newest_with(self, run: str | None = None, limit: int = 1) -> list[str]:
        """The newest sessions, not in the trash, that have a run or iteration of this name.

        Of any name where none is given.
        """
        having = [e for e in self._list_entries() if (run in e.names if run else e.names)]
        there = [each for each in having if each.row.deleted_at is None]
        newest = SessionQuery().sort_entries(there)[:limit]
        return [each.row.session_id for each in newest]

    def _list_entries(self) -> list[IndexEntry]:
        return list(self._entries.values())


def session_folders(runs_dir: Path) -> dict[str, tuple[str, int]]:
    """Return the possible session folders by id, with their modification times."""
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
