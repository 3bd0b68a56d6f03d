"""A cgroup of the sandbox's own: found, filled in, believed; and on a real kernel where it has one.

A plain folder stands for the kernel's tree where this machine has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from p2p.sandbox import cgroup, layers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandbox_runner import Runner

MIB = 1 << 20


def tree(mount: Path, groups: Mapping[str, str]) -> Path:
    """A folder that looks like a cgroup tree: by group, the controllers its children have."""
    for name, controllers in groups.items():
        (mount / name).mkdir(parents=True, exist_ok=True)
        (mount / name / "cgroup.subtree_control").write_text(controllers + "\n")
        (mount / name / "cgroup.procs").touch()
    return mount


def test_the_nearest_group_with_both_controllers_is_used(tmp_path: Path) -> None:
    groups = {"": "cpu memory pids", "user": "memory pids", "user/app": "cpu io memory pids"}
    mount = tree(tmp_path / "cgroup", groups | {"user/app/shell": ""})
    assert cgroup.parent_of_groups(mount, "/user/app/shell") == mount / "user" / "app"
    assert cgroup.parent_of_groups(mount, "/") == mount


def test_a_tree_that_is_not_delegated_is_left_alone(tmp_path: Path) -> None:
    outside = tree(tmp_path, {"": "memory pids"})
    mount = tree(outside / "cgroup", {"": "cpu memory", "user": "pids"})
    assert cgroup.parent_of_groups(mount, "/user/shell") is None
    assert cgroup.parent_of_groups(outside / "none", "/user") is None
    (mount / "cgroup.subtree_control").write_text("memory pids")
    (mount / "cgroup.procs").unlink()  # not even a privileged user writes to it now
    assert cgroup.parent_of_groups(mount, "/user/shell") is None


def test_limits_are_written_before_the_code_runs_and_a_kill_for_memory_is_told(
    sandbox: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = tree(tmp_path / "cgroup", {"": "memory pids"})
    (groups / f"p2p-sandbox-{2**31}-1").mkdir()  # of a parent that was killed
    monkeypatch.setattr(cgroup, "_parent", lambda: groups)
    monkeypatch.setattr(cgroup, "_REMOVE_SECONDS", 0.0)
    source = """
    import os, time
    while not os.path.exists("killed"):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
    """
    limits = {"memory_bytes": 64 * MIB, "max_threads": 7, "wall_seconds": 60.0}
    with sandbox.start(source, **limits) as process:
        (group,) = (path for path in groups.iterdir() if path.is_dir())
        (group / "memory.events").write_text("low 0\noom 1\noom_kill 1\noom_group_kill 1\n")
        (process.folder / "killed").touch()
        end = process.wait(60)
    assert process.layers["cgroup"]
    texts = {path.name: path.read_text() for path in group.iterdir()}
    assert texts.pop("memory.events")
    assert texts == {
        "memory.max": str(64 * MIB),
        "memory.oom.group": "1",
        "pids.max": "7",
        "cgroup.procs": str(process.pid),
    }
    assert (end.reason, end.message) == ("memory", "it used more than its 64.0 MiB of memory")
    monkeypatch.undo()


FILL_PIPES = """
import fcntl, os, time
pipes = []
while True:
    r, w = os.pipe(); pipes += [r, w]
    try: fcntl.fcntl(w, 1031, 1 << 20)
    except OSError: pass
    os.set_blocking(w, False)
    try:
        while True: os.write(w, bytes(1 << 16))
    except BlockingIOError: pass
"""


@pytest.mark.skipif(not layers().cgroup, reason="no cgroups (v2) can be made here")
def test_memory_of_the_kernel_counts_where_there_are_cgroups(sandbox: Runner) -> None:
    parent = cgroup._parent()
    assert parent is not None
    ended = sandbox(FILL_PIPES, memory_bytes=64 * MIB)
    assert (ended.exit.reason, ended.exit.message) == (
        "memory",
        "it used more than its 64.0 MiB of memory",
    )
    assert list(parent.glob("p2p-sandbox-*")) == []
