"""Jobs and runs as lists of them show them: plain, and quick to make by the ten thousand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.scheduler.records import JobKind, RunState

JobState = Literal["pending", "running", "succeeded", "failed", "cancelled"]


class RunRow(NamedTuple):
    """How a run stands."""

    run_id: str
    job_id: str
    state: RunState
    attempt: int
    cancel_requested: bool
    """Stays, whatever becomes of the run; only a retry takes it back."""
    node_id: str | None
    """Where it is, or was last."""
    cores: int
    gpus: int
    exit_code: int | None
    message: str
    started_at: float | None
    ended_at: float | None
    folder: str

    @property
    def launch_id(self) -> str:
        """The name of its present attempt, by which a backend knows it."""
        return f"{self.run_id}.{self.attempt}"


RUN_COLUMNS = ", ".join(RunRow._fields)
"""As they stand in a query."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job, and how many of its runs are in which state."""

    job_id: str
    kind: JobKind
    title: str
    priority: int
    max_parallel: int
    nodes: tuple[str, ...]
    created_at: float
    counts: Mapping[RunState, int]

    @property
    def state(self) -> JobState:
        """How it stands as a whole."""
        return job_state(self.counts)

    @property
    def total(self) -> int:
        """How many runs it has."""
        return sum(self.counts.values())


def job_state(counts: Mapping[RunState, int]) -> JobState:
    """The state of a job from those of its runs.

    One that has ended is failed if a run failed (or was skipped for one that did), else cancelled
    if a run was, else it succeeded.
    """
    left = sum(counts.get(state, 0) for state in ("pending", "starting", "running"))
    if left:
        return "pending" if counts.get("pending", 0) == sum(counts.values()) else "running"
    if counts.get("failed"):
        return "failed"
    if counts.get("cancelled"):
        return "cancelled"
    return "failed" if counts.get("skipped") else "succeeded"
