"""CPU cores and GPUs, shared by every process of this user on this machine.

A core is a file, and holding the core is holding the kernel's lock on that file. A process that
dies, however it dies, gives its cores back; there is no table that could go stale. The file says
who holds it, for those that wait.

Every supervisor imports this, so pydantic is not imported here: it takes longer than all the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from p2p.resource_auto import detect_machine

CORE_LOCKS = "P2P_CORE_LOCKS"
"""Names the folder of the locks for a program that was given cores, to share out among its own."""


def lock_folder() -> Path:
    """Return where the core files lie: private to the user, the same for all of their processes.

    A program that a scheduler launched has a folder of its own: its cores are held for it, and
    what it starts shares them.
    """
    if own := os.environ.get(CORE_LOCKS):
        return Path(own)
    # Not in XDG_RUNTIME_DIR, nor TMPDIR: a second login may have none, or another.
    return Path("/tmp") / f"p2p-cores-{os.getuid()}"  # noqa: S108 - the folder is checked


def default_pool() -> tuple[int, ...]:
    """The cores this process may run on; only the first of them where a cgroup grants fewer."""
    return tuple(sorted(os.sched_getaffinity(0))[: detect_machine().cores])


@dataclass(frozen=True)
class CoreHolder:
    """Who holds a core, as the core's file says it."""

    pid: int
    work: str = ""
    """What it does with it: a run's folder, a launch."""

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.work})" if self.work else "")


@dataclass
class CoreLease:
    """Cores held until `release`, or until this process ends."""

    cores: tuple[int, ...]
    _open: list[int]

    def sign(self, pid: int, work: str = "") -> None:
        """Record the owner of these cores for other processes, if the disk has room."""
        text = json.dumps(asdict(CoreHolder(pid, work))).encode()
        with suppress(OSError):  # the lock is what counts
            for descriptor in self._open:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text, 0)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open locks; a child that inherits them keeps the cores held after this process."""
        return tuple(self._open)

    def release(self) -> None:
        """Give the cores back. Doing it twice is harmless."""
        while self._open:
            os.close(self._open.pop())


class CPUManager:
    """Hands out cores of a pool; no core is held twice on this machine.

    Args:
        pool: the cores to hand out; by default those this process may run on, as many as it is
            granted.
        folder: where the locks lie; by default one folder per user.
    """

    def __init__(self, pool: Sequence[int] | None = None, folder: Path | None = None) -> None:
        self.pool = tuple(sorted(set(default_pool() if pool is None else pool)))
        if not self.pool:
            raise ValueError("the pool of cores is empty")
        self.folder = folder or lock_folder()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.is_symlink() or self.folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.folder} does not belong to this user")

    def _try_core(self, core: int) -> int | None:
        descriptor = os.open(
            self.folder / f"core_{core}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """Admit one process at a time, so that two never hold half of what each needs."""
        gate = os.open(self.folder / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            os.close(gate)

    def try_allocate(self, count: int) -> CoreLease | None:
        """Hold `count` cores, or None when so many are not free now."""
        if not 1 <= count <= len(self.pool):
            raise ValueError(f"{count} cores asked of a pool of {len(self.pool)}")
        held: dict[int, int] = {}
        with self._gate():
            for core in self.pool:
                if len(held) == count:
                    break
                descriptor = self._try_core(core)
                if descriptor is not None:
                    held[core] = descriptor
        lease = CoreLease(tuple(held), list(held.values()))
        if len(held) == count:
            lease.sign(os.getpid())  # what the last holder wrote is no longer true
            return lease
        lease.release()
        return None

    def free_cores(self) -> tuple[int, ...]:
        """Return the cores of the pool that are free at this moment."""
        free = []
        with self._gate():
            for core in self.pool:
                descriptor = self._try_core(core)
                if descriptor is not None:
                    os.close(descriptor)
                    free.append(core)
        return tuple(free)

    def holders(self) -> dict[int, CoreHolder | None]:
        """Return the holder of each occupied core, or None if it is not recorded."""
        free = self.free_cores()
        return {core: self._read_holder(core) for core in self.pool if core not in free}

    def describe_wait(self, count: int) -> str:
        """`needs 1 core; held: 2 of 2 by process 71 (session_x/iter_1/base_seed_1)`.

        Empty while nobody holds any.
        """
        names = [str(holder or "another process") for holder in self.holders().values()]
        pool = len(self.pool)
        held = ", ".join(f"{names.count(n)} of {pool} by {n}" for n in dict.fromkeys(names))
        return f"needs {count} core{'' if count == 1 else 's'}; held: {held}" if names else ""

    def _read_holder(self, core: int) -> CoreHolder | None:
        try:
            fields = json.loads((self.folder / f"core_{core}").read_bytes())
            return CoreHolder(int(fields["pid"]), str(fields["work"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def gpu_numbers() -> tuple[int, ...]:
    """Return the GPUs of this process: those of CUDA_VISIBLE_DEVICES, else all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        words = [word.strip() for word in visible.split(",") if word.strip()]
        if not all(word.isdigit() for word in words):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES={visible} names GPUs otherwise than by number; "
                "runs that ask for a GPU need numbers"
            )
        return tuple(int(word) for word in words)
    names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def gpu_manager() -> CPUManager:
    """Hands out GPUs as cores are handed out; raises ValueError where there are none."""
    numbers = gpu_numbers()
    if not numbers:
        raise ValueError("the run asks for a GPU, and this machine has none")
    # Slurm shares them out itself, and may number them from 0 in each of its jobs.
    name = f"gpus-{job}" if (job := os.environ.get("SLURM_JOB_ID")) else "gpus"
    return CPUManager(numbers, lock_folder() / name)


PASSED_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME", "XDG_DATA_HOME", "P2P_CACHE_DIR", "P2P_ENGINES_DIR",
    "P2P_MODELS_DIR", "MUJOCO_GL", "P2P_ENV_PATH", "P2P_ENV_FILE", "XDG_CONFIG_HOME",
    "XDG_STATE_HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY",
    "P2P_LAUNCH_ID", "P2P_CORE_LOCKS",
)  # fmt: skip
"""Training needs no key and no token, so its environment has none."""
TRACKER_VARIABLES = (
    "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT",
    "TRACKIO_DIR", "HF_TOKEN",
)  # fmt: skip
"""For the trusted process of a run whose metrics go there; its sandbox has none of them."""
