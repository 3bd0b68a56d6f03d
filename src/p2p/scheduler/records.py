"""What the scheduler keeps and what its backends are given: jobs, runs, nodes, launches.

Names and paths that may reach another machine are checked here, before anything is done: nothing
that passes can be taken for an option, lead out of a folder, or mean anything to a shell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from p2p.contracts import Record
from p2p.validation import Flag

MAX_NAME = 128
OWN_FOLDER = "scheduler"
"""The scheduler's own folder below the runs folder: no run may use it."""


def _check_inside(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError(f"{path!r} leads out of its folder: `..` is not allowed")
    return path


Id = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$", max_length=MAX_NAME)
]
"""A job, a run or a node: letters, digits, `_` and `-`, single dots inside; also a file's name."""
HostName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$", max_length=253)
]
UserName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$", max_length=32)]
AbsolutePath = Annotated[
    str, Field(pattern=r"^/[A-Za-z0-9._/-]*$", max_length=1024), AfterValidator(_check_inside)
]
"""A path on a node, in characters that mean nothing to a shell."""
FolderName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$", max_length=512),
    AfterValidator(_check_inside),
]
"""A folder below the runs folder, such as `bm_1f2e/case7`."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=MAX_NAME)]

JobKind = Literal["session", "benchmark", "training", "selfplay", "command"]
JobState = Literal["pending", "running", "succeeded", "failed", "cancelled"]
RunState = Literal["pending", "starting", "running", "succeeded", "failed", "cancelled", "skipped"]
"""failed: ended with an error, or lost too often. skipped: required one that did not succeed."""
ENDED: tuple[RunState, ...] = ("succeeded", "failed", "cancelled", "skipped")
BackendName = Literal["local", "ssh", "ray", "slurm"]


class RunSpec(Record):
    """A program on one node. All that it reads and writes lies in its folder."""

    run_id: Annotated[Id, Field(max_length=MAX_NAME - 8)]  # an attempt's number fits behind it
    """Unique in the runs folder, whichever its job."""
    folder: FolderName
    """Below the runs folder. It travels to the node before the start; what changes travels back."""
    command: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)]
    """`{python}`, `{runs_dir}` and `{folder}` in it become what they are on the node."""
    cores: Annotated[int, Field(ge=1, le=4096)] = 1
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    secrets: tuple[VariableName, ...] = ()
    """Variables that the run is given if they are set. Their values are never stored."""
    after: tuple[Id, ...] = ()
    """Runs of the same job that must have ended, however."""
    requires: tuple[Id, ...] = ()
    """Runs of the same job that must have succeeded; if one does not, this one is skipped."""
    nodes: tuple[Id, ...] = ()
    """Where it may run, whatever its job says; empty: where its job may."""
    done_codes: tuple[int, ...] = (0,)
    """Exit codes of a run that did its work: a session that came to no pass has done so, too."""
    retry_codes: tuple[int, ...] = ()
    """Exit codes after which it is started again. A run that is lost always is."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    tags: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_folder(self) -> RunSpec:
        if self.folder.split("/")[0] == OWN_FOLDER:
            raise ValueError(f"folder {self.folder}: {OWN_FOLDER}/ is the scheduler's own")
        return self


class JobSpec(Record):
    """Runs that belong together."""

    job_id: Id
    kind: JobKind
    title: Annotated[str, Field(max_length=200)] = ""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher goes first; among equals the job that uses the fewest cores does."""
    max_parallel: Annotated[int, Field(ge=0)] = 0
    """Runs at once; 0: as many as there is room for."""
    nodes: tuple[Id, ...] = ()
    """Where it may run; empty: wherever there is room."""
    runs: Annotated[tuple[RunSpec, ...], Field(min_length=1)]
    created_at: datetime

    @model_validator(mode="after")
    def _check_runs(self) -> JobSpec:
        known: set[str] = set()
        folders: set[str] = set()
        for run in self.runs:
            if run.run_id in known:
                raise ValueError(f"run {run.run_id} is there twice")
            if run.folder in folders:
                raise ValueError(f"two runs have the folder {run.folder}")
            for other in (*run.after, *run.requires):
                if other not in known:
                    # Only earlier ones, so that there can be no circle.
                    raise ValueError(
                        f"run {run.run_id} waits for {other}, which is not an earlier run"
                    )
            known.add(run.run_id)
            folders.add(run.folder)
        return self


NEEDED_FIELDS: Mapping[BackendName, tuple[str, ...]] = {
    "local": (),
    "ssh": ("host", "base_dir"),
    "ray": ("address",),
    "slurm": ("base_dir",),
}


class NodeConfig(Record):
    """A node: a place to which runs can be sent."""

    node_id: Id
    backend: Annotated[BackendName, Flag("--backend", "local, ssh, ray or slurm.", "KIND")] = (
        "local"
    )
    cores: Annotated[
        int,
        Field(ge=1, le=1_000_000),
        Flag("--cores", "Cores for runs.", "N", "local: all there are"),
    ]
    gpus: Annotated[int, Field(ge=0, le=100_000), Flag("--gpus", "GPUs for runs.", "N")] = 0
    host: Annotated[HostName | None, Flag("--host", "ssh: its address.", "HOST", "none")] = None
    port: Annotated[int, Field(ge=1, le=65535), Flag("--port", "ssh: port.", "N")] = 22
    user: Annotated[UserName | None, Flag("--user", "ssh: user name.", "NAME", "yours")] = None
    base_dir: Annotated[
        AbsolutePath | None,
        Flag("--base-dir", "ssh: working folder there; slurm: a shared one.", "PATH", "none"),
    ] = None
    """ssh: the folder of ours on the node. slurm: one that all nodes of the cluster see."""
    python: Annotated[
        AbsolutePath | None,
        Flag("--python", "Python there, with the dependencies of p2p.", "PATH", "this one"),
    ] = None
    key_file: Annotated[
        AbsolutePath | None, Flag("--key-file", "ssh: a private key.", "PATH", "the usual ones")
    ] = None
    known_hosts: Annotated[
        AbsolutePath | None, Flag("--known-hosts", "ssh: hosts to trust.", "PATH", "the usual")
    ] = None
    """A host that is not in it is refused."""
    address: Annotated[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:/_-]*$", max_length=300)] | None,
        Flag("--address", "ray: address of the cluster.", "ADDRESS", "none"),
    ] = None
    partition: Annotated[
        Id | None, Flag("--partition", "slurm: partition.", "NAME", "the cluster's")
    ] = None
    lease_s: Annotated[
        float,
        Field(ge=5, le=86_400),
        Flag("--lease", "ssh: seconds without contact after which runs end.", "S"),
    ] = 600.0
    enabled: Annotated[bool, Flag("--enabled/--no-enabled", "Whether new runs may go there.")] = (
        True
    )

    @model_validator(mode="after")
    def _check_needed_fields(self) -> NodeConfig:
        for name in NEEDED_FIELDS[self.backend]:
            if getattr(self, name) is None:
                raise ValueError(f"{name} is needed for the backend {self.backend}")
        return self


class Launch(Record):
    """An attempt at a run, which a backend starts at most once."""

    launch_id: Id
    """`{run_id}.{attempt}`: the same after any crash, so that a second request finds the first."""
    spec: RunSpec
    runs_dir: Path
    """The runs folder on the scheduler's machine."""

    @property
    def folder(self) -> Path:
        return self.runs_dir / self.spec.folder


class RunRow(NamedTuple):
    """A run in the store; a plain tuple, because lists have tens of thousands of them."""

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
        return f"{self.run_id}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the store, and how many of its runs are in which state."""

    job_id: str
    kind: JobKind
    title: str
    priority: int
    max_parallel: int
    created_at: float
    nodes: tuple[str, ...]
    counts: Mapping[RunState, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def state(self) -> JobState:
        """Failed if a run failed (or was skipped for one), else cancelled if a run was."""
        counts = self.counts
        if any(counts.get(state) for state in ("pending", "starting", "running")):
            return "pending" if counts.get("pending", 0) == self.total else "running"
        if counts.get("failed"):
            return "failed"
        if counts.get("cancelled"):
            return "cancelled"
        return "failed" if counts.get("skipped") else "succeeded"
