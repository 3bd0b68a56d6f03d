"""Which run goes where: a pure function of who waits and what is free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


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
        """Whether the run could start here if the node were empty."""
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
        """Who is first in line: the most urgent, then whoever has least, then the oldest."""
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
        room = _best([room for room in allowed if room.node_id != reserved], run)
        if room is None:
            reserved = reserved or _to_keep_free(allowed, run)
            continue
        room.free_cores -= run.cores
        room.free_gpus -= run.gpus
        job.live += 1
        job.cores_in_use += run.cores
        placed[run.run_id] = room.node_id
        heapq.heappush(line, (job.order(), job))
    return placed


def _best(rooms: list[Room], run: Waiting) -> Room | None:
    """The emptiest node it fits on; GPUs are left to those who need them."""
    fitting = [r for r in rooms if run.cores <= r.free_cores and run.gpus <= r.free_gpus]
    return min(
        fitting,
        key=lambda room: (room.gpus if not run.gpus else 0, -room.free_cores, room.node_id),
        default=None,
    )


def _to_keep_free(rooms: list[Room], run: Waiting) -> str | None:
    """The node on which a run that fits nowhere now will fit first."""
    later = [room for room in rooms if room.could_fit(run)]
    chosen = max(later, key=lambda room: (room.free_cores, room.node_id), default=None)
    return chosen.node_id if chosen else None
