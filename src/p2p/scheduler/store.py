"""What is to run, what runs and what became of it: jobs, runs and nodes in one SQLite file.

Every change of a state names the state it starts from, inside a transaction; so of two processes
that want the same, one gets it. A wish to cancel is a column of its own that no scheduler writes.
No secret is in here: a run names the variables it needs, never their values.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.scheduler.dependents import recount, settle_dependents
from p2p.scheduler.records import ENDED, OWN_FOLDER, JobSpec, NodeConfig, RunSpec
from p2p.scheduler.rows import RUN_COLUMNS, JobRow, RunRow
from p2p.scheduler.schema import StoreError, connect, transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Sequence

    from p2p.scheduler.records import RunState

JOB_COLUMNS = "job_id, kind, title, priority, max_parallel, nodes, created_at"
LOCAL = "local"
"""The node that is there from the beginning: this machine."""


def scheduler_folder(runs_dir: Path) -> Path:
    """Where the scheduler of a runs folder keeps its own files."""
    return runs_dir.absolute() / OWN_FOLDER


class Store:
    """The store of a runs folder, made when first opened."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir.absolute()
        self.folder = scheduler_folder(runs_dir)
        self.path = self.folder / "scheduler.sqlite"
        self.connection = connect(self.path, _add_this_machine)

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()

    def version(self) -> int:
        """A number that changes when another process, or another Store, has written."""
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    # --- nodes ------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeConfig]:
        """All nodes, by name."""
        found = self.connection.execute("SELECT config FROM nodes ORDER BY node_id")
        return [NodeConfig.model_validate_json(text) for (text,) in found]

    def node(self, node_id: str) -> NodeConfig | None:
        """The node of this name."""
        query = "SELECT config FROM nodes WHERE node_id = ?"
        found = self.connection.execute(query, (node_id,)).fetchone()
        return NodeConfig.model_validate_json(found[0]) if found else None

    def add_node(self, node: NodeConfig, *, replace: bool = False) -> None:
        """Take a node in; one of that name is only replaced if that is said."""
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
            there = [run.run_id for run in self.live_runs() if run.node_id == node_id]
            if there and not give_up:
                raise StoreError(f"{len(there)} runs are on node {node_id}, such as {there[0]}")
            for run_id in there:
                end_run(connection, run_id, "failed", f"its node {node_id} was removed")
            connection.execute("DELETE FROM nodes WHERE node_id = ?", (node_id,))
        return there

    def in_use(self) -> dict[str, tuple[int, int, int]]:
        """Runs, cores and GPUs in use on each node."""
        found = self.connection.execute("SELECT node_id, live, used_cores, used_gpus FROM nodes")
        return {node: (runs, cores, gpus) for node, runs, cores, gpus in found}

    # --- jobs -------------------------------------------------------------------------------------

    def submit(self, job: JobSpec) -> None:
        """Take a job in, whole or not at all; raises StoreError for a name that is taken."""
        with transaction(self.connection) as connection:
            known = {name for (name,) in connection.execute("SELECT node_id FROM nodes")}
            for node in (*job.nodes, *(node for run in job.runs for node in run.nodes)):
                if node not in known:
                    names = ", ".join(sorted(known)) or "none"
                    raise StoreError(f"job {job.job_id}: there is no node {node}, only {names}")
            if connection.execute("SELECT 1 FROM jobs WHERE job_id = ?", (job.job_id,)).fetchone():
                raise StoreError(f"job {job.job_id} is there already: choose another name")
            _insert_job(connection, job)

    def job(self, job_id: str) -> JobRow | None:
        """The job of this name."""
        return next(iter(self._jobs("WHERE job_id = ?", (job_id,))), None)

    def jobs(
        self, limit: int | None = None, *, unended: bool = False, prefix: str = ""
    ) -> list[JobRow]:
        """Jobs, newest first; only those with something left to do, or whose name begins so."""
        return self._jobs(
            "WHERE substr(job_id, 1, ?) = ? AND unended >= ? ORDER BY number DESC LIMIT ?",
            (len(prefix), prefix, int(unended), -1 if limit is None else limit),
        )

    def _jobs(self, clause: str, values: tuple[Any, ...]) -> list[JobRow]:
        query = f"SELECT {JOB_COLUMNS} FROM jobs {clause}"  # noqa: S608 - the clauses above
        found = self.connection.execute(query, values).fetchall()
        return [
            JobRow(
                job_id=job_id,
                kind=kind,
                title=title,
                priority=priority,
                max_parallel=max_parallel,
                nodes=tuple(json.loads(nodes)),
                created_at=created_at,
                counts=self.counts(job_id),
            )
            for job_id, kind, title, priority, max_parallel, nodes, created_at in found
        ]

    def counts(self, job_id: str) -> dict[RunState, int]:
        """How many of the job's runs are in which state."""
        query = "SELECT state, COUNT(*) FROM runs WHERE job_id = ? GROUP BY state"
        return dict(self.connection.execute(query, (job_id,)).fetchall())

    def runs(self, job_id: str | None = None) -> list[RunRow]:
        """The runs of a job in their order, or all there are."""
        where = "" if job_id is None else "WHERE job_id = ?"
        found = self.connection.execute(
            f"SELECT {RUN_COLUMNS} FROM runs {where} ORDER BY number",  # noqa: S608 - our names
            () if job_id is None else (job_id,),
        )
        return list(map(RunRow._make, found))

    def live_runs(self) -> list[RunRow]:
        """Those on a node."""
        found = self.connection.execute(
            f"SELECT {RUN_COLUMNS} FROM runs "  # noqa: S608 - our names
            "WHERE state IN ('starting', 'running') ORDER BY number"
        )
        return list(map(RunRow._make, found))

    def run(self, run_id: str) -> RunRow | None:
        """The run of this name."""
        query = f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = ?"  # noqa: S608 - our names
        found = self.connection.execute(query, (run_id,)).fetchone()
        return RunRow._make(found) if found else None

    def run_in(self, folder: str) -> RunRow | None:
        """The run that has this folder below the runs folder and has not ended."""
        query = (
            f"SELECT {RUN_COLUMNS} FROM runs WHERE folder = ? "  # noqa: S608 - our names
            "AND state IN ('pending', 'starting', 'running')"
        )
        found = self.connection.execute(query, (folder,)).fetchone()
        return RunRow._make(found) if found else None

    def spec(self, run_id: str) -> RunSpec:
        """What a run was asked to do; raises StoreError for one that is not there."""
        query = "SELECT spec FROM runs WHERE run_id = ?"
        found = self.connection.execute(query, (run_id,)).fetchone()
        if found is None:
            raise StoreError(f"there is no run {run_id}")
        return RunSpec.model_validate_json(found[0])

    # --- what people ask for ----------------------------------------------------------------------

    def cancel(self, job_id: str, run_ids: Collection[str] | None = None) -> int:
        """Ask for the end of a job's runs, or of some of them; returns of how many.

        One that has not started is cancelled on the spot. One that has is ended by the scheduler,
        also by one that starts only later.
        """
        with transaction(self.connection) as connection:
            chosen = [run for run in self._chosen(job_id, run_ids) if run.state not in ENDED]
            for run in chosen:
                connection.execute(
                    "UPDATE runs SET cancel_requested = 1 WHERE run_id = ?", (run.run_id,)
                )
            for run in chosen:
                if run.state == "pending":
                    end_run(connection, run.run_id, "cancelled", "")
        return len(chosen)

    def retry(self, job_id: str, run_ids: Collection[str] | None = None) -> int:
        """Let runs that failed, were cancelled or skipped run again; returns how many.

        With them those that were skipped because of them. Each has all its attempts again.
        """
        with transaction(self.connection) as connection:
            again = {
                run.run_id
                for run in self._chosen(job_id, run_ids)
                if run.state in ("failed", "cancelled", "skipped")
            }
            again |= _skipped_for(connection, again)
            for run_id in again:
                attempts = self.spec(run_id).max_attempts
                # A new number also where it never started: the old one may have been cancelled.
                connection.execute(
                    "UPDATE runs SET state = 'pending', attempt = attempt + 1, "
                    "last_attempt = attempt + ?, cancel_requested = 0, node_id = NULL, "
                    "exit_code = NULL, message = '', started_at = NULL, ended_at = NULL "
                    "WHERE run_id = ?",
                    (attempts, run_id),
                )
            for run_id in again:
                recount(connection, run_id)
            for run_id in again:
                settle_dependents(connection, run_id)
        return len(again)

    def _chosen(self, job_id: str, run_ids: Collection[str] | None) -> list[RunRow]:
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
    settle_dependents(connection, run_id)


def _add_this_machine(connection: sqlite3.Connection) -> None:
    from p2p.scheduler.gpus import gpu_numbers
    from p2p.training.cpu_manager import default_pool

    try:
        gpus = len(gpu_numbers())
    except ValueError:  # named otherwise than by number: they cannot be shared out
        gpus = 0
    _insert_node(connection, NodeConfig(node_id=LOCAL, cores=len(default_pool()), gpus=gpus))


def _insert_node(connection: sqlite3.Connection, node: NodeConfig) -> None:
    connection.execute(
        "INSERT INTO nodes(node_id, cores, gpus, enabled, config) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT(node_id) DO UPDATE SET cores = excluded.cores, gpus = excluded.gpus, "
        "enabled = excluded.enabled, config = excluded.config",
        (node.node_id, node.cores, node.gpus, node.enabled, node.model_dump_json()),
    )


def _insert_job(connection: sqlite3.Connection, job: JobSpec) -> None:
    connection.execute(
        "INSERT INTO jobs(job_id, kind, title, priority, max_parallel, nodes, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            job.job_id,
            job.kind,
            job.title,
            job.priority,
            job.max_parallel,
            json.dumps(job.nodes),
            job.created_at.timestamp(),
        ),
    )
    _insert_runs(connection, job.job_id, job.runs)


def _insert_runs(connection: sqlite3.Connection, job_id: str, runs: Sequence[RunSpec]) -> None:
    import sqlite3

    waits = [
        (needs, run.run_id, strict)
        for run in runs
        for names, strict in ((run.after, 0), (run.requires, 1))
        for needs in dict.fromkeys(names)
    ]
    blocked: dict[str, int] = {}
    for _, run_id, _ in waits:
        blocked[run_id] = blocked.get(run_id, 0) + 1
    rows: Iterable[tuple[Any, ...]] = (
        (
            run.run_id,
            job_id,
            blocked.get(run.run_id, 0),
            run.max_attempts,
            run.cores,
            run.gpus,
            run.folder,
            run.model_dump_json(exclude_defaults=True),
        )
        for run in runs
    )
    try:
        connection.executemany(
            "INSERT INTO runs(run_id, job_id, blocked, last_attempt, cores, gpus, folder, spec) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
    except sqlite3.IntegrityError as error:
        taken = (
            run.run_id
            for run in runs
            if connection.execute(
                "SELECT 1 FROM runs WHERE run_id = ? AND job_id <> ?", (run.run_id, job_id)
            ).fetchone()
        )
        raise StoreError(f"run {next(taken, '')} is there already, in another job") from error
    connection.executemany("INSERT INTO waits(needs, run_id, strict) VALUES (?, ?, ?)", waits)


def _skipped_for(connection: sqlite3.Connection, run_ids: set[str]) -> set[str]:
    """Runs that were skipped because of these, or because of each other."""
    found: set[str] = set()
    pending = list(run_ids)
    while pending:
        query = (
            "SELECT waits.run_id FROM waits JOIN runs USING (run_id) "
            "WHERE waits.needs = ? AND waits.strict AND runs.state = 'skipped'"
        )
        more = {name for (name,) in connection.execute(query, (pending.pop(),))} - found
        found |= more
        pending += more
    return found
