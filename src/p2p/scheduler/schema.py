"""The tables of scheduler.sqlite, and how they are opened."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = 1
PATIENCE_S = 30.0
"""How long a writer waits for another one."""

SCHEMA = """
CREATE TABLE nodes(
  node_id TEXT PRIMARY KEY,
  cores INTEGER NOT NULL,
  gpus INTEGER NOT NULL,
  enabled INTEGER NOT NULL,
  config TEXT NOT NULL,
  live INTEGER NOT NULL DEFAULT 0,     -- runs that are on it
  used_cores INTEGER NOT NULL DEFAULT 0,
  used_gpus INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- Who may write on a job: its owner, while the owner's row here is not out of date.
CREATE TABLE schedulers(
  owner TEXT PRIMARY KEY,
  until REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE jobs(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  title TEXT NOT NULL,
  priority INTEGER NOT NULL,
  max_parallel INTEGER NOT NULL,
  nodes TEXT NOT NULL,
  created_at REAL NOT NULL,
  owner TEXT,
  ready INTEGER NOT NULL DEFAULT 0,    -- runs that only wait for room
  unended INTEGER NOT NULL DEFAULT 0,
  live INTEGER NOT NULL DEFAULT 0,     -- runs that are on nodes
  used_cores INTEGER NOT NULL DEFAULT 0,
  stale INTEGER NOT NULL DEFAULT 1     -- its manifest is out of date
);

CREATE TABLE runs(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL UNIQUE,
  job_id TEXT NOT NULL REFERENCES jobs(job_id),
  state TEXT NOT NULL DEFAULT 'pending',
  blocked INTEGER NOT NULL DEFAULT 0,  -- runs that it still waits for
  attempt INTEGER NOT NULL DEFAULT 1,
  last_attempt INTEGER NOT NULL,
  cancel_requested BOOLEAN NOT NULL DEFAULT 0,
  node_id TEXT,
  cores INTEGER NOT NULL,
  gpus INTEGER NOT NULL,
  exit_code INTEGER,
  message TEXT NOT NULL DEFAULT '',
  started_at REAL,
  ended_at REAL,
  folder TEXT NOT NULL,
  spec TEXT NOT NULL
);

CREATE TABLE waits(
  needs TEXT NOT NULL,
  run_id TEXT NOT NULL,
  strict INTEGER NOT NULL,             -- it must have succeeded, not only ended
  PRIMARY KEY (needs, run_id, strict)
) WITHOUT ROWID;
CREATE INDEX waits_of_run ON waits(run_id);

CREATE INDEX runs_of_job ON runs(job_id, state);
CREATE INDEX runs_ready ON runs(job_id, number) WHERE state = 'pending' AND blocked = 0;
CREATE INDEX runs_live ON runs(number) WHERE state IN ('starting', 'running');
CREATE INDEX jobs_ready ON jobs(priority DESC, used_cores, number) WHERE ready > 0;
CREATE INDEX jobs_stale ON jobs(number) WHERE stale = 1;
CREATE INDEX jobs_open ON jobs(owner) WHERE unended > 0;

CREATE TRIGGER run_added AFTER INSERT ON runs BEGIN
  UPDATE jobs SET ready = ready + (NEW.blocked = 0), unended = unended + 1
    WHERE job_id = NEW.job_id;
END;
CREATE TRIGGER run_changed AFTER UPDATE OF state, blocked ON runs
WHEN OLD.state <> NEW.state OR OLD.blocked <> NEW.blocked BEGIN
  UPDATE jobs SET
    stale = 1,
    ready = ready + (NEW.state = 'pending' AND NEW.blocked = 0)
                  - (OLD.state = 'pending' AND OLD.blocked = 0),
    unended = unended + (NEW.state IN ('pending', 'starting', 'running'))
                      - (OLD.state IN ('pending', 'starting', 'running'))
    WHERE job_id = NEW.job_id;
END;
CREATE TRIGGER run_placed AFTER UPDATE OF state ON runs
WHEN NEW.state IN ('starting', 'running') AND OLD.state NOT IN ('starting', 'running') BEGIN
  UPDATE jobs SET live = live + 1, used_cores = used_cores + NEW.cores
    WHERE job_id = NEW.job_id;
  UPDATE nodes SET live = live + 1, used_cores = used_cores + NEW.cores,
    used_gpus = used_gpus + NEW.gpus WHERE node_id = NEW.node_id;
END;
CREATE TRIGGER run_gone AFTER UPDATE OF state ON runs
WHEN OLD.state IN ('starting', 'running') AND NEW.state NOT IN ('starting', 'running') BEGIN
  UPDATE jobs SET live = live - 1, used_cores = used_cores - OLD.cores
    WHERE job_id = OLD.job_id;
  UPDATE nodes SET live = live - 1, used_cores = used_cores - OLD.cores,
    used_gpus = used_gpus - OLD.gpus WHERE node_id = OLD.node_id;
END;
"""


class StoreError(Exception):
    """The store refuses, or cannot be used; the message says why and what to do."""


sqlite3.register_converter("BOOLEAN", lambda text: text == b"1")


def connect(path: Path, begin: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    """Open the database, made if it is not there; `begin` puts into a new one what it starts with.

    Raises StoreError if the file cannot be used.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Other threads may read through it, one at a time.
        made = sqlite3.connect(
            path,
            timeout=PATIENCE_S,
            isolation_level=None,
            check_same_thread=False,
            detect_types=sqlite3.PARSE_DECLTYPES,
        )
        made.execute("PRAGMA journal_mode = WAL")
        # A start that is forgotten after a power cut could be made twice: every commit is on disk.
        made.execute("PRAGMA synchronous = FULL")
        made.execute("PRAGMA foreign_keys = ON")
        if made.execute("PRAGMA user_version").fetchone()[0] == 0:
            with transaction(made):
                if made.execute("PRAGMA user_version").fetchone()[0] == 0:
                    for statement in _statements(SCHEMA):
                        made.execute(statement)
                    begin(made)
                    made.execute(f"PRAGMA user_version = {VERSION}")
        found = made.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be used: {error}") from error
    if found != VERSION:
        raise StoreError(f"{path} was made by another version ({found}, not {VERSION}) of p2p")
    return made


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All of it or nothing; nobody else writes meanwhile, so what was read stays true."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would commit in the midst of it."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
