"""What is to be done, where, and what became of it: jobs, runs and nodes in one SQLite file.

Every change of a state names the state it starts from, inside a transaction; so of two processes
that want the same, one gets it. A wish to cancel is a column of its own that no scheduler writes.
No secret is in here: a run names the variables it needs, never their values.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.files import read_text, write_text
from p2p.scheduler.records import (
    ENDED,
    OWN_FOLDER,
    JobRow,
    JobSpec,
    Launch,
    NodeConfig,
    RunRow,
    RunSpec,
    RunState,
)
from p2p.settings import command_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

VERSION = 1
LOCK_TIMEOUT_S = 30.0
JOB_COLUMNS = "job_id, kind, title, priority, max_parallel, created_at, nodes"
RUN_COLUMNS = ", ".join(RunRow._fields)
SELECT_RUNS = f"SELECT {RUN_COLUMNS} FROM runs "  # noqa: S608 - our names
LOCAL = "local"
"""The node that is there from the beginning: this machine."""

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

CREATE TABLE jobs(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  title TEXT NOT NULL,
  priority INTEGER NOT NULL,
  max_parallel INTEGER NOT NULL,
  nodes TEXT NOT NULL,
  created_at REAL NOT NULL,
  owner TEXT,                          -- the scheduler that may write on it, while it lives
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


# For a run, `?`: how many of those it waits for are not over, and the first that rules it out.
UNMET = """
  SELECT COUNT(*) FROM waits JOIN runs AS needed ON needed.run_id = waits.needs
  WHERE waits.run_id = ?
    AND CASE WHEN waits.strict THEN needed.state <> 'succeeded'
        ELSE needed.state IN ('pending', 'starting', 'running') END
"""
RULED_OUT_BY = """
  SELECT needed.run_id, needed.state FROM waits JOIN runs AS needed ON needed.run_id = waits.needs
  WHERE waits.run_id = ? AND waits.strict
    AND needed.state IN ('failed', 'cancelled', 'skipped')
  ORDER BY needed.number LIMIT 1
"""

sqlite3.register_converter("BOOLEAN", lambda text: text == b"1")


class StoreError(Exception):
    """The store refuses, or cannot be used; the message says why and what to do."""


def scheduler_folder(runs_dir: Path) -> Path:
    """The folder with the scheduler's own files."""
    return runs_dir.absolute() / OWN_FOLDER


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run a transaction that excludes other writers, so that what was read stays true."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


class Store:
    """The store of a runs folder, made when first opened.

    Without `make`, nothing is written where there is none: it reads like a new one.
    """

    def __init__(self, runs_dir: Path, *, make: bool = True) -> None:
        self.runs_dir = runs_dir.absolute()
        self.folder = scheduler_folder(runs_dir)
        self.path = self.folder / "scheduler.sqlite"
        if self.path.is_symlink() or self.folder.is_symlink():
            raise StoreError(f"{self.path} is a link, or behind one: links are not followed")
        absent = not make and not self.path.exists()
        self.connection, is_new = _connect(Path(":memory:") if absent else self.path)
        if is_new and not absent:
            with suppress(StoreError):  # until somebody wants to run something
                self.mark_trusted()

    def close(self) -> None:
        self.connection.close()

    # --- trust ------------------------------------------------------------------------------------

    def mark_trusted(self) -> None:
        """Note outside of the folder that its jobs may be run, as this user made it.

        Jobs are commands, and a folder may have come from somebody else. Raises StoreError where
        that cannot be written.
        """
        number = self._number() or secrets.randbelow(2**31 - 1) + 1
        self.connection.execute(f"PRAGMA application_id = {number}")
        try:
            write_text(self._note, f"{number} {self.path.resolve()}\n")
        except OSError as error:
            raise StoreError(f"{self._note} cannot be written: {error.strerror}") from error

    def check_trusted(self) -> None:
        """Raise StoreError with a remedy if the store's jobs may not be run."""
        number, noted = self._number(), (read_text(self._note) or "").split()
        if not number or noted[:1] != [str(number)]:
            raise StoreError(
                f"{self.path} was not made here, and its jobs are commands: look through `p2p jobs "
                f"list`, then run them with `{command_in(self.runs_dir, 'p2p scheduler run')} "
                "--trust`"
            )

    def _number(self) -> int:
        return int(self.connection.execute("PRAGMA application_id").fetchone()[0])

    @property
    def _note(self) -> Path:
        state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:32]
        return state.resolve() / "prompt2policy" / "stores" / name

    # --- nodes ------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeConfig]:
        """Return all nodes by name."""
        rows = self.connection.execute("SELECT config FROM nodes ORDER BY node_id")
        return [NodeConfig.model_validate_json(config) for (config,) in rows]

    def node(self, node_id: str) -> NodeConfig | None:
        query = "SELECT config FROM nodes WHERE node_id = ?"
        row = self.connection.execute(query, (node_id,)).fetchone()
        return NodeConfig.model_validate_json(row[0]) if row else None

    def add_node(self, node: NodeConfig, *, replace: bool = False) -> None:
        """Add a node; one of that name is only replaced if that is said."""
        with transaction(self.connection) as connection:
            if not replace and self.node(node.node_id) is not None:
                raise StoreError(f"node {node.node_id} is there already")
            _insert_node(connection, node)

    def remove_node(self, node_id: str, *, give_up: bool = False) -> list[str]:
        """Forget a node; returns the runs that were on it.

        With runs on it this is refused, unless they are to be given up: they then count as failed,
        and what is left of them on the node ends when its lease does.
        """
        with transaction(self.connection) as connection:
            if self.node(node_id) is None:
                raise StoreError(f"there is no node {node_id}")
            run_ids = [run.run_id for run in self.live_runs() if run.node_id == node_id]
            if run_ids and not give_up:
                raise StoreError(f"{len(run_ids)} runs are on node {node_id}, such as {run_ids[0]}")
            for run_id in run_ids:
                end_run(connection, run_id, "failed", f"its node {node_id} was removed")
            connection.execute("DELETE FROM nodes WHERE node_id = ?", (node_id,))
        return run_ids

    def count_in_use(self) -> dict[str, tuple[int, int, int]]:
        """Count the runs, cores and GPUs in use on each node."""
        rows = self.connection.execute("SELECT node_id, live, used_cores, used_gpus FROM nodes")
        return {node: (runs, cores, gpus) for node, runs, cores, gpus in rows}

    # --- jobs and runs ----------------------------------------------------------------------------

    def submit(self, job: JobSpec) -> None:
        """Add a job, whole or not at all; raises StoreError for a name that is taken."""
        with transaction(self.connection) as connection:
            known = {name for (name,) in connection.execute("SELECT node_id FROM nodes")}
            for node in (*job.nodes, *(node for run in job.runs for node in run.nodes)):
                if node not in known:
                    names = ", ".join(sorted(known)) or "none"
                    raise StoreError(f"job {job.job_id}: unknown node {node}; known: {names}")
            if connection.execute("SELECT 1 FROM jobs WHERE job_id = ?", (job.job_id,)).fetchone():
                raise StoreError(f"job {job.job_id} exists already: choose another name")
            _insert_job(connection, job)

    def job(self, job_id: str) -> JobRow | None:
        return next(iter(self._jobs("WHERE job_id = ?", job_id)), None)

    def jobs(
        self, limit: int | None = None, *, unended: bool = False, prefix: str = ""
    ) -> list[JobRow]:
        """Jobs, newest first; only those with something left to do, or whose name begins so."""
        return self._jobs(
            "WHERE substr(job_id, 1, ?) = ? AND unended >= ? ORDER BY number DESC LIMIT ?",
            len(prefix), prefix, int(unended), -1 if limit is None else limit,
        )  # fmt: skip

    def _jobs(self, clause: str, *values: object) -> list[JobRow]:
        query = f"SELECT {JOB_COLUMNS} FROM jobs {clause}"  # noqa: S608 - the clauses above
        rows = self.connection.execute(query, values).fetchall()
        counts: dict[str, dict[RunState, int]] = {row[0]: {} for row in rows}
        for job_id, state, count in self.connection.execute(
            "SELECT job_id, state, COUNT(*) FROM runs "
            "WHERE job_id IN (SELECT value FROM json_each(?)) GROUP BY job_id, state",
            (json.dumps([*counts]),),
        ):
            counts[job_id][state] = count
        return [
            JobRow(name, kind, title, priority, limit, at, tuple(json.loads(nodes)), counts[name])
            for name, kind, title, priority, limit, at, nodes in rows
        ]

    def select_runs(self, clause: str, *values: object) -> list[RunRow]:
        """The runs that a WHERE or ORDER BY clause describes."""
        return list(map(RunRow._make, self.connection.execute(SELECT_RUNS + clause, values)))

    def runs(self, job_id: str | None = None) -> list[RunRow]:
        """The runs of a job in their order, or all there are."""
        if job_id is None:
            return self.select_runs("ORDER BY number")
        return self.select_runs("WHERE job_id = ? ORDER BY number", job_id)

    def live_runs(self) -> list[RunRow]:
        """The runs that are on a node."""
        return self.select_runs("WHERE state IN ('starting', 'running') ORDER BY number")

    def run(self, run_id: str) -> RunRow | None:
        return next(iter(self.select_runs("WHERE run_id = ?", run_id)), None)

    def run_in(self, folder: str) -> RunRow | None:
        """The run that has this folder below the runs folder and has not ended."""
        clause = "WHERE folder = ? AND state IN ('pending', 'starting', 'running')"
        return next(iter(self.select_runs(clause, folder)), None)

    def spec(self, run_id: str) -> RunSpec:
        """The specification of a run; raises StoreError for an unknown one."""
        query = "SELECT spec FROM runs WHERE run_id = ?"
        row = self.connection.execute(query, (run_id,)).fetchone()
        if row is None:
            raise StoreError(f"there is no run {run_id}")
        return RunSpec.model_validate_json(row[0])

    def launch(self, run: RunRow, attempt: int | None = None) -> Launch:
        """An attempt at a run, by default its present one."""
        launch_id = f"{run.run_id}.{attempt or run.attempt}"
        return Launch(launch_id=launch_id, spec=self.spec(run.run_id), runs_dir=self.runs_dir)

    # --- what people ask for ----------------------------------------------------------------------

    def cancel(self, job_id: str, run_ids: Collection[str] | None = None) -> int:
        """Ask for the end of a job's runs, or of some of them; returns of how many.

        One that has not started is cancelled on the spot. One that has is ended by the scheduler,
        also by one that starts only later.
        """
        with transaction(self.connection) as connection:
            chosen = [run for run in self._select_chosen(job_id, run_ids) if run.state not in ENDED]
            asked = "UPDATE runs SET cancel_requested = 1 WHERE run_id = ?"
            connection.executemany(asked, [(run.run_id,) for run in chosen])
            for run in chosen:
                if run.state == "pending":
                    end_run(connection, run.run_id, "cancelled", "")
        return len(chosen)

    def retry(self, job_id: str, run_ids: Collection[str] | None = None) -> int:
        """Retry runs that failed, were cancelled or skipped; returns how many.

        With them those that were skipped because of them. Each has all its attempts again.
        """
        with transaction(self.connection) as connection:
            again = {
                run.run_id
                for run in self._select_chosen(job_id, run_ids)
                if run.state in ("failed", "cancelled", "skipped")
            }
            again |= _find_skipped(connection, again)
            for run_id in again:
                # A new number also where it never started: the old one may have been cancelled.
                connection.execute(
                    "UPDATE runs SET state = 'pending', attempt = attempt + 1, "
                    "last_attempt = attempt + ?, cancel_requested = 0, node_id = NULL, "
                    "exit_code = NULL, message = '', started_at = NULL, ended_at = NULL "
                    "WHERE run_id = ?",
                    (self.spec(run_id).max_attempts, run_id),
                )
            for run_id in again:
                _count_unmet(connection, run_id)
            for run_id in again:
                _update_dependents(connection, run_id)
        return len(again)

    def _select_chosen(self, job_id: str, run_ids: Collection[str] | None) -> list[RunRow]:
        runs = self.runs(job_id)
        if not runs:
            raise StoreError(f"there is no job {job_id}")
        if run_ids is None:
            return runs
        if unknown := sorted(set(run_ids) - {run.run_id for run in runs}):
            raise StoreError(f"job {job_id} has no run {unknown[0]}")
        return [run for run in runs if run.run_id in set(run_ids)]


def end_run(
    connection: sqlite3.Connection,
    run_id: str,
    state: RunState,
    message: str,
    exit_code: int | None = None,
) -> None:
    """Note a run's end, and what it means for those that wait for it."""
    connection.execute(
        "UPDATE runs SET state = ?, message = ?, exit_code = ?, ended_at = ? WHERE run_id = ?",
        (state, message, exit_code, time.time(), run_id),
    )
    _update_dependents(connection, run_id)


def _update_dependents(connection: sqlite3.Connection, run_id: str) -> None:
    """After a change of a run: those that waited for it alone may start, or never will."""
    changed = [run_id]
    while changed:
        waiting = connection.execute(
            "SELECT DISTINCT waits.run_id FROM waits JOIN runs USING (run_id) "
            "WHERE waits.needs = ? AND runs.state = 'pending'",
            (changed.pop(),),
        ).fetchall()
        changed += [name for (name,) in waiting if _count_unmet(connection, name)]


def _count_unmet(connection: sqlite3.Connection, run_id: str) -> bool:
    """Count anew what a pending run waits for; True if it will never be met, and it is skipped."""
    reason = connection.execute(RULED_OUT_BY, (run_id,)).fetchone()
    if reason is not None:
        connection.execute(
            "UPDATE runs SET state = 'skipped', message = ?, ended_at = ? "
            "WHERE run_id = ? AND state = 'pending'",
            (f"it needs {reason[0]}, which is {reason[1]}", time.time(), run_id),
        )
        return True
    (unmet,) = connection.execute(UNMET, (run_id,)).fetchone()
    connection.execute(
        "UPDATE runs SET blocked = ? WHERE run_id = ? AND state = 'pending'", (unmet, run_id)
    )
    return False


def _find_skipped(connection: sqlite3.Connection, run_ids: set[str]) -> set[str]:
    """Find the runs that were skipped because of these runs, directly or not."""
    skipped: set[str] = set()
    pending = list(run_ids)
    while pending:
        rows = connection.execute(
            "SELECT waits.run_id FROM waits JOIN runs USING (run_id) "
            "WHERE waits.needs = ? AND waits.strict AND runs.state = 'skipped'",
            (pending.pop(),),
        )
        more = {name for (name,) in rows} - skipped
        skipped |= more
        pending += more
    return skipped


def _connect(path: Path) -> tuple[sqlite3.Connection, bool]:
    """The database, and whether it was made just now."""
    is_new = False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Other threads may read through it, one at a time.
        connection = sqlite3.connect(
            path,
            timeout=LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            detect_types=sqlite3.PARSE_DECLTYPES,
        )
        connection.execute("PRAGMA journal_mode = WAL")
        # A start that is forgotten after a power cut could be made twice: every commit is on disk.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if not _version(connection):
            with transaction(connection):
                if not _version(connection):
                    for statement in _statements(SCHEMA):
                        connection.execute(statement)
                    _insert_node(connection, this_machine())
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                    is_new = True
        version = _version(connection)
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be used: {error}") from error
    if version != VERSION:
        raise StoreError(f"{path} was made by another version ({version}, not {VERSION}) of p2p")
    return connection, is_new


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would commit in the midst of it."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def this_machine() -> NodeConfig:
    """The node that a new store has."""
    from p2p.training.cpu_manager import default_pool, gpu_numbers

    try:
        gpus = len(gpu_numbers())
    except ValueError:  # named otherwise than by number: they cannot be shared out
        gpus = 0
    return NodeConfig(node_id=LOCAL, cores=len(default_pool()), gpus=gpus)


def _insert_node(connection: sqlite3.Connection, node: NodeConfig) -> None:
    connection.execute(
        "INSERT INTO nodes(node_id, cores, gpus, enabled, config) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT(node_id) DO UPDATE SET cores = excluded.cores, gpus = excluded.gpus, "
        "enabled = excluded.enabled, config = excluded.config",
        (node.node_id, node.cores, node.gpus, node.enabled, node.model_dump_json()),
    )


def _insert_job(connection: sqlite3.Connection, job: JobSpec) -> None:
    connection.execute(
        f"INSERT INTO jobs({JOB_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - our names
        (
            job.job_id, job.kind, job.title, job.priority, job.max_parallel,
            job.created_at.timestamp(), json.dumps(job.nodes),
        ),
    )  # fmt: skip
    waits = [
        (needs, run.run_id, strict)
        for run in job.runs
        for names, strict in ((run.after, 0), (run.requires, 1))
        for needs in dict.fromkeys(names)
    ]
    blocked = Counter(run_id for _, run_id, _ in waits)
    rows = (
        (
            run.run_id, job.job_id, blocked[run.run_id], run.max_attempts, run.cores, run.gpus,
            run.folder, run.model_dump_json(exclude_defaults=True),
        )
        for run in job.runs
    )  # fmt: skip
    try:
        connection.executemany(
            "INSERT INTO runs(run_id, job_id, blocked, last_attempt, cores, gpus, folder, spec) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
    except sqlite3.IntegrityError as error:
        taken = "SELECT 1 FROM runs WHERE run_id = ? AND job_id <> ?"
        run_id = next(
            run.run_id
            for run in job.runs
            if connection.execute(taken, (run.run_id, job.job_id)).fetchone()
        )
        raise StoreError(f"run {run_id} is there already, in another job") from error
    connection.executemany("INSERT INTO waits(needs, run_id, strict) VALUES (?, ?, ?)", waits)
