import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from p2p.training.cpu_manager import CPUManager

HOLD = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from p2p.training.cpu_manager import CPUManager
    lease = CPUManager(pool=range(4), folder=Path(sys.argv[1])).try_allocate(int(sys.argv[2]))
    print(*lease.cores, flush=True)
    time.sleep(60)
    """
)


def hold(folder: Path, count: int) -> tuple[subprocess.Popen[str], set[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(count)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, set(map(int, process.stdout.readline().split()))


def test_two_processes_never_hold_the_same_core(tmp_path: Path) -> None:
    process, theirs = hold(tmp_path, 3)
    try:
        manager = CPUManager(pool=range(4), folder=tmp_path)
        assert manager.try_allocate(2) is None
        lease = manager.try_allocate(1)
        assert lease is not None
        assert len(theirs) == 3
        assert not theirs & set(lease.cores)
    finally:
        process.kill()
        process.communicate()


def test_a_failed_allocation_holds_nothing(tmp_path: Path) -> None:
    manager = CPUManager(pool=range(4), folder=tmp_path)
    first = manager.try_allocate(3)
    assert first is not None
    assert manager.try_allocate(2) is None
    assert len(manager.free_cores()) == 1


def test_a_killed_process_gives_its_cores_back(tmp_path: Path) -> None:
    process, _ = hold(tmp_path, 4)
    manager = CPUManager(pool=range(4), folder=tmp_path)
    assert manager.free_cores() == ()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert manager.free_cores() == (0, 1, 2, 3)


def test_whoever_waits_can_see_who_holds_which_core(tmp_path: Path) -> None:
    manager = CPUManager(pool=range(4), folder=tmp_path)
    signed = manager.try_allocate(2)
    assert signed is not None
    signed.sign(4711, "session_y/iter_2/base_seed_0")
    signed.release()
    process, theirs = hold(tmp_path, 3)  # on the cores that the other had signed
    try:
        assert {core: str(holder) for core, holder in manager.holders().items()} == dict.fromkeys(
            theirs, f"process {process.pid}"
        )
    finally:
        process.kill()
        process.communicate()
    assert manager.holders() == {}


def test_cores_stay_held_by_a_child_that_inherits_them(tmp_path: Path) -> None:
    manager = CPUManager(pool=range(2), folder=tmp_path)
    lease = manager.try_allocate(1)
    assert lease is not None
    child = subprocess.Popen(["sleep", "60"], pass_fds=lease.descriptors)
    lease.release()
    assert len(manager.free_cores()) == 1
    child.kill()
    child.wait()
    assert len(manager.free_cores()) == 2


@pytest.mark.parametrize("count", [0, 3])
def test_an_impossible_request_is_an_error_not_a_wait(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="pool of 2"):
        CPUManager(pool=range(2), folder=tmp_path).try_allocate(count)


def test_a_lock_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError):
        CPUManager(pool=range(1), folder=tmp_path / "link")


def test_the_pool_is_no_larger_than_what_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {7, 3, 5})
    monkeypatch.setattr("p2p.resource_auto._cgroup_cores", lambda: 2)
    assert CPUManager(folder=tmp_path).pool == (3, 5)
    monkeypatch.setattr("p2p.resource_auto._cgroup_cores", lambda: None)
    assert CPUManager(folder=tmp_path).pool == (3, 5, 7)


def test_a_launched_program_has_locks_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2P_CORE_LOCKS", str(tmp_path / "launch" / "cores"))
    assert CPUManager(pool=[0]).folder == tmp_path / "launch" / "cores"


def test_cores_are_held_where_no_disk_takes_the_holders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    manager = CPUManager(pool=range(1), folder=tmp_path / "cores")
    monkeypatch.setattr(os, "pwrite", full)
    lease = manager.try_allocate(1)
    assert lease is not None
    assert manager.holders() == {0: None}
    lease.release()
    assert manager.free_cores() == (0,)
