"""The scheduler's side of the store: which run goes where, and what became of it.

What it writes counts only for jobs that it owns. The owner of a job is named by a lock file that
its process keeps locked: one that was killed lets go of it at once, and the next scheduler takes
the job over.
"""

from __future__ import annotations

import heapq
import json
import os
import secrets
import socket
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from p2p.files import hold_lock, is_free
from p2p.scheduler.store import StoreError, end_run, transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator

    from p2p.scheduler.records import RunRow, RunState
    from p2p.scheduler.store import Store

MAX_JOBS_CONSIDERED = 1000
"""So many of the jobs that wait are looked at for one that fits, the first in line first."""
MAX_JOBS_EXPLAINED = 100
"""So many jobs are told when no node will ever take them."""


class NotOurRun(Exception):
    """The run has ended, is in another attempt, or its job is another scheduler's: leave it."""


class Writer:
    """A scheduler's hand on the store, until it is closed or its process ends."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._locks = store.folder / "owners"
        self._held = ExitStack()
        self._held.enter_context(hold_lock(self._locks / self.owner))

    def close(self) -> None:
        """Release all jobs; others may take them at once."""
        self.store.connection.execute("UPDATE jobs SET owner = NULL WHERE owner = ?", (self.owner,))
        (self._locks / self.owner).unlink(missing_ok=True)
        self._held.close()

    def take_jobs(self, job_id: str | None = None) -> None:
        """Become the owner of all jobs that have something to do and no living owner, or of one."""
        connection = self.store.connection
        owners = connection.execute(
            "SELECT DISTINCT owner FROM jobs WHERE unended > 0 AND owner IS NOT ?", (self.owner,)
        ).fetchall()
        gone = [owner for (owner,) in owners if owner is None or self._is_gone(owner)]
        for owner in gone:
            connection.execute(
                "UPDATE jobs SET owner = ? "
                "WHERE unended > 0 AND owner IS ? AND (? IS NULL OR job_id = ?)",
                (self.owner, owner, job_id, job_id),
            )
            if owner is not None:
                (self._locks / owner).unlink(missing_ok=True)

    def _is_gone(self, owner: str) -> bool:
        path = self._locks / owner
        return not path.exists() or is_free(path)

    @contextmanager
    def _change_own_run(self, run: RunRow) -> Iterator[tuple[sqlite3.Connection, RunRow]]:
        """A change of a run that is on a node in this attempt, and whose job is ours.

        Gives the run as it is now; raises NotOurRun.
        """
        with transaction(self.store.connection) as connection:
            rows = self.store.select_runs(
                "WHERE run_id = ? AND attempt = ? AND state IN ('starting', 'running') AND EXISTS "
                "(SELECT 1 FROM jobs WHERE jobs.job_id = runs.job_id AND owner = ?)",
                run.run_id, run.attempt, self.owner,
            )  # fmt: skip
            if not rows:
                raise NotOurRun(f"{run.launch_id} is no longer this scheduler's")
            yield connection, rows[0]

    # --- what is there to do ----------------------------------------------------------------------

    def live_runs(self) -> list[RunRow]:
        """Runs on nodes whose jobs are ours."""
        return self.store.select_runs(
            "WHERE state IN ('starting', 'running') "
            "AND EXISTS (SELECT 1 FROM jobs WHERE jobs.job_id = runs.job_id AND owner = ?)",
            self.owner,
        )

    def assign(self, avoided: frozenset[str] = frozenset()) -> list[RunRow]:
        """Give waiting runs to nodes with room, and note it; returns what is to be started.

        Looking and noting are one transaction, so that several schedulers together give no node
        more than it has. `avoided`: nodes that cannot be reached now.
        """
        connection = self.store.connection
        if not connection.execute("SELECT 1 FROM jobs WHERE ready > 0 LIMIT 1").fetchone():
            return []
        with transaction(connection):
            rooms = [room for room in self._read_rooms() if room.node_id not in avoided]
            if not any(room.free_cores > 0 for room in rooms):
                return []
            placed = place(self._queue_jobs(), rooms)
            now = time.time()
            for run_id, node_id in placed.items():
                changed = connection.execute(
                    "UPDATE runs SET state = 'starting', node_id = ?, started_at = ? WHERE "
                    "run_id = ? AND state = 'pending' AND blocked = 0 AND cancel_requested = 0",
                    (node_id, now, run_id),
                ).rowcount
                if changed != 1:
                    raise StoreError(f"{run_id} was not waiting: the store is damaged")
        return [run for run_id in placed if (run := self.store.run(run_id)) is not None]

    def _read_rooms(self) -> list[Room]:
        return [
            Room(node_id, cores, gpus, max(0, cores - used_cores), max(0, gpus - used_gpus))
            for node_id, cores, gpus, used_cores, used_gpus in self.store.connection.execute(
                "SELECT node_id, cores, gpus, used_cores, used_gpus FROM nodes WHERE enabled"
            )
        ]

    def _queue_jobs(self) -> Iterator[JobInLine]:
        """Our jobs with runs that wait, the first in line first."""
        jobs = self.store.connection.execute(
            "SELECT job_id, number, priority, nodes, max_parallel, live, used_cores FROM jobs "
            "WHERE ready > 0 AND owner = ? ORDER BY priority DESC, used_cores, number LIMIT ?",
            (self.owner, MAX_JOBS_CONSIDERED),
        )
        for job_id, number, priority, nodes, max_parallel, live, used_cores in jobs:
            yield JobInLine(
                number=number,
                waiting=self._read_waiting(job_id),
                priority=priority,
                nodes=frozenset(json.loads(nodes)),
                max_parallel=max_parallel,
                live=live,
                cores_in_use=used_cores,
            )

    def _read_waiting(self, job_id: str) -> Iterator[Waiting]:
        for run_id, cores, gpus, nodes in self.store.connection.execute(
            "SELECT run_id, cores, gpus, json_extract(spec, '$.nodes') FROM runs "
            "WHERE job_id = ? AND state = 'pending' AND blocked = 0 ORDER BY number",
            (job_id,),
        ):
            yield Waiting(run_id, cores, gpus, frozenset(json.loads(nodes or "[]")))

    def explain_unplaceable(self) -> None:
        """Say so of runs that no node they may go to will take, however long they wait."""
        rooms = self._read_rooms()
        for job in list(islice(self._queue_jobs(), MAX_JOBS_EXPLAINED)):
            run = next(job.waiting, None)
            if run is None:
                continue
            may = run.nodes or job.nodes
            if any(room.could_fit(run) for room in rooms if not may or room.node_id in may):
                continue
            reason = _describe_unplaceable(run, may, {room.node_id for room in rooms})
            self.store.connection.execute(
                "UPDATE runs SET message = ? "
                "WHERE run_id = ? AND state = 'pending' AND message <> ?",
                (reason, run.run_id, reason),
            )

    # --- what has become of a run -----------------------------------------------------------------

    def mark_running(self, run: RunRow) -> None:
        """Note that its node has taken the run."""
        with self._change_own_run(run) as (connection, _):
            connection.execute(
                "UPDATE runs SET state = 'running', message = '' WHERE run_id = ?", (run.run_id,)
            )

    def note(self, run: RunRow, message: str) -> None:
        """Say something about a run that goes on, such as why its node cannot be reached."""
        with self._change_own_run(run) as (connection, current):
            if current.message != message:
                connection.execute(
                    "UPDATE runs SET message = ? WHERE run_id = ?", (message, run.run_id)
                )

    def finish(
        self, run: RunRow, state: RunState, message: str = "", exit_code: int | None = None
    ) -> None:
        """Note the end of a run; those that waited for it may start."""
        with self._change_own_run(run) as (connection, _):
            end_run(connection, run.run_id, state, message, exit_code)

    def try_again(
        self, run: RunRow, message: str, exit_code: int | None = None, *, counts: bool = True
    ) -> None:
        """Note a lost attempt: the run waits for the next, or has failed if that was the last.

        If its end was asked for meanwhile, it is cancelled. One that does not count leaves as many
        attempts as there were.
        """
        with self._change_own_run(run) as (connection, current):
            (last,) = connection.execute(
                "SELECT last_attempt FROM runs WHERE run_id = ?", (run.run_id,)
            ).fetchone()
            if current.cancel_requested:
                end_run(connection, run.run_id, "cancelled", message, exit_code)
            elif counts and run.attempt >= last:
                message = f"{message} (attempt {run.attempt}, the last)"
                end_run(connection, run.run_id, "failed", message, exit_code)
            else:
                connection.execute(
                    "UPDATE runs SET state = 'pending', attempt = attempt + 1, "
                    "last_attempt = last_attempt + ?, message = ?, exit_code = ?, node_id = NULL, "
                    "started_at = NULL WHERE run_id = ?",
                    (int(not counts), f"attempt {run.attempt}: {message}", exit_code, run.run_id),
                )


def _describe_unplaceable(run: Waiting, may: frozenset[str], enabled: set[str]) -> str:
    """Return why it waits in vain, and what to do about it."""
    if may and not may & enabled:
        why = f"it may run on {' and '.join(sorted(may))} only, which is disabled or gone"
    else:
        where = f"of {', '.join(sorted(may))} " if may else ""
        why = f"none {where}has {run.cores} cores and {run.gpus} GPUs"
    return f"there is no node for it: {why}; see p2p nodes list"


# --- which run goes where: a pure function of who waits and what is free ------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that only waits for room."""

    run_id: str
    cores: int
    gpus: int = 0
    nodes: frozenset[str] = frozenset()
    """Where it may run; empty: where its job may."""


@dataclass(slots=True)
class Room:
    """A node: what it has, and what of it is free."""

    node_id: str
    cores: int
    gpus: int
    free_cores: int
    free_gpus: int

    def could_fit(self, run: Waiting) -> bool:
        """Return whether the run could start here if the node were empty."""
        return run.cores <= self.cores and run.gpus <= self.gpus


@dataclass(slots=True)
class JobInLine:
    """A job with runs that wait."""

    number: int
    """Older jobs have smaller ones."""
    waiting: Iterator[Waiting]
    """Its runs in their order, asked for only as far as there is room."""
    priority: int = 0
    nodes: frozenset[str] = field(default_factory=frozenset)
    """Where it may run; empty: anywhere."""
    max_parallel: int = 0
    live: int = 0
    """Its runs that are on a node."""
    cores_in_use: int = 0

    def order(self) -> tuple[int, int, int]:
        """The place in line: by priority, then by fewest cores in use, then by age."""
        return (-self.priority, self.cores_in_use, self.number)


def place(jobs: Iterable[JobInLine], rooms: list[Room]) -> dict[str, str]:
    """The node of each run that is to start, in the order in which to start them.

    `jobs` come in their order, and no more of them are asked for than there is room. One run of
    the job that is first in line, then look again who is first. Within a job runs start in their
    order. The first that finds no room is kept a node free for, where it would fit, so that
    smaller runs behind it cannot keep it out for ever. `rooms` are used up.
    """
    placed: dict[str, str] = {}
    coming = iter(jobs)
    line: list[tuple[tuple[int, int, int], JobInLine]] = []  # those that have been first before
    newcomer = None
    reserved: str | None = None
    while any(room.free_cores for room in rooms if room.node_id != reserved):
        newcomer = newcomer or next(coming, None)
        if newcomer is not None and (not line or newcomer.order() < line[0][0]):
            job, newcomer = newcomer, None
        elif line:
            _, job = heapq.heappop(line)
        else:
            break
        if job.max_parallel and job.live >= job.max_parallel:
            continue
        run = next(job.waiting, None)
        if run is None:
            continue
        may = run.nodes or job.nodes
        allowed = [room for room in rooms if not may or room.node_id in may]
        room = _choose_room([room for room in allowed if room.node_id != reserved], run)
        if room is None:
            reserved = reserved or _choose_node(allowed, run)
            continue
        room.free_cores -= run.cores
        room.free_gpus -= run.gpus
        job.live += 1
        job.cores_in_use += run.cores
        placed[run.run_id] = room.node_id
        heapq.heappush(line, (job.order(), job))
    return placed


def _choose_room(rooms: list[Room], run: Waiting) -> Room | None:
    """The emptiest node it fits on; GPUs are left to those who need them."""
    fitting = [r for r in rooms if run.cores <= r.free_cores and run.gpus <= r.free_gpus]
    return min(
        fitting,
        key=lambda room: (room.gpus if not run.gpus else 0, -room.free_cores, room.node_id),
        default=None,
    )


def _choose_node(rooms: list[Room], run: Waiting) -> str | None:
    """Choose the node to reserve for a run that fits nowhere now."""
    later = [room for room in rooms if room.could_fit(run)]
    chosen = max(later, key=lambda room: (room.free_cores, room.node_id), default=None)
    return chosen.node_id if chosen else None
