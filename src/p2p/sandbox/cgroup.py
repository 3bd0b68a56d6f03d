"""cgroup v2: a group of its own for a sandboxed process, whose memory and tasks the kernel bounds.

It counts what the other limits cannot: page tables, pipes, sockets and every other thing that the
kernel keeps for the process. It takes a subtree in which this user may make groups with both
controllers, such as a systemd user session has. Elsewhere the resource limits and the parent's
looks stand alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p2p.sandbox.limits import Sandbox

_CONTROLLERS = {"memory", "pids"}
_NAME = "p2p-sandbox"
_REMOVE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A cgroup with one sandboxed process in it, and what that starts."""

    folder: Path

    def out_of_memory(self) -> bool:
        """Return whether the kernel killed something in it for want of memory."""
        try:
            lines = (self.folder / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(line.split()[0] == "oom_kill" and line.split()[1] != "0" for line in lines)

    def remove(self) -> None:
        """Kill what is left in it, and remove it."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while self.folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            with contextlib.suppress(OSError):
                (self.folder / "cgroup.kill").write_text("1")
            time.sleep(0.01)


def parent_of_groups(mount: Path, own: str) -> Path | None:
    """The nearest group around ``own`` in which groups with limits can be made; None: nowhere."""
    here = mount / own.lstrip("/")
    for folder in (here, *here.parents):
        try:
            controllers = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            controllers = []
        # The kernel also asks for the right to move processes within their common ancestor.
        writable = all(os.access(path, os.W_OK) for path in (folder, folder / "cgroup.procs"))
        if _CONTROLLERS.issubset(controllers) and writable:
            return folder
        if folder == mount:
            break
    return None


def _parent() -> Path | None:
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    own = [line.removeprefix("0::") for line in groups if line.startswith("0::")]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted, _, source = line.partition(" - ")
        if source.startswith("cgroup2 ") and own:
            root, mount = mounted.split()[3:5]
            return parent_of_groups(Path(mount), own[0].removeprefix(root.rstrip("/")))
    return None


def limits(sandbox: Sandbox) -> dict[str, int]:
    """Return what is written to which file of the group."""
    return {
        "memory.max": sandbox.memory_bytes,
        "memory.swap.max": 0,  # a kernel without swap has no such file
        "memory.oom.group": 1,
        "pids.max": sandbox.max_threads,
    }


def _remove_leftovers(parent: Path) -> None:
    """Remove groups of parents that were killed; their sandboxes have died with them."""
    for folder in parent.glob(f"{_NAME}-*"):
        owner = folder.name.removeprefix(f"{_NAME}-").partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def enclose(pid: int, sandbox: Sandbox) -> ControlGroup | None:
    """Put a new process in its own cgroup; return None where cgroups are not available."""
    try:
        parent = _parent()
        if parent is None:
            return None
        _remove_leftovers(parent)
        group = ControlGroup(parent / f"{_NAME}-{os.getpid()}-{pid}")
        group.folder.mkdir()
    except OSError:
        return None
    try:
        for name, value in limits(sandbox).items():
            if name != "memory.swap.max" or (group.folder / name).exists():
                (group.folder / name).write_text(str(value))
        (group.folder / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.remove()
        return None
    return group
