"""Launches on this machine: started once, ended whole, whatever dies in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launches import Machine, alive, python_launch, supervisor_pid
from processes import wait_until

from p2p.scheduler import notify
from p2p.scheduler.launch import LaunchError, LaunchFolder
from p2p.scheduler.records import Launch
from p2p.training.cpu_manager import CPUManager

pytestmark = pytest.mark.process

FOREVER = "import time; open('up', 'w').write('1'); time.sleep(1000)"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOREVER
COUNTS = "open('count', 'a').write('x'); import time; time.sleep(0.3)"
FAMILY = """
import os, subprocess, sys, time
loop = "import time; time.sleep(1000)"
# A child, one with a session of its own, and one that lost its parent as well.
child = subprocess.Popen([sys.executable, "-c", loop])
own = subprocess.Popen([sys.executable, "-c", loop], start_new_session=True)
middle = ("import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
          "stdout=subprocess.DEVNULL, start_new_session=True); print(p.pid)")
orphan = int(subprocess.check_output([sys.executable, "-c", middle, loop]))
with open("pids.tmp", "w") as stream:
    stream.write(f"{os.getpid()} {child.pid} {own.pid} {orphan}")
os.rename("pids.tmp", "pids")
"""


def pids_of(machine: Machine, launch: Launch) -> list[int]:
    return [int(word) for word in machine.file(launch, "pids").split()]


def test_launch_keeps_exit_code_and_output(machine: Machine) -> None:
    code = "import os, sys; print(os.getcwd(), sys.argv[1:]); print('oh', file=sys.stderr); exit(3)"
    launch = machine.start(code, "{folder}", "{runs_dir}", "{python}")
    status = machine.end(launch)
    assert (status.state, status.exit_code) == ("exited", 3)
    folder = str(machine.folder(launch))
    said = machine.log(launch)
    assert said.startswith(f"{folder} {[folder, str(machine.runs_dir), sys.executable]}")
    assert "oh\n" in said
    assert machine.at(launch).read_log(len(said) - 2).decode() == said[-2:]


def test_many_starts_run_the_program_once(
    machine: Machine,
) -> None:
    launch = python_launch(machine.runs_dir, COUNTS)
    assert machine.status(launch).state == "absent"
    machine.launches.append(launch)
    together = threading.Barrier(5)

    def start() -> None:
        together.wait()
        machine.launch(launch)

    threads = [threading.Thread(target=start) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.status(launch).state != "absent"
    assert machine.end(launch).exit_code == 0
    machine.launch(launch)
    machine.at(launch).cancel()
    assert machine.status(launch).exit_code == 0
    assert machine.file(launch, "count") == "x"


def by_cancel(machine: Machine, launch: Launch) -> None:
    machine.at(launch).cancel()


def by_sigterm(machine: Machine, launch: Launch) -> None:
    os.kill(supervisor_pid(machine.control(launch)), signal.SIGTERM)


def by_sigkill(machine: Machine, launch: Launch) -> None:
    os.kill(supervisor_pid(machine.control(launch)), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end_it", "state", "message"),
    [
        (by_cancel, "cancelled", ""),
        (by_sigterm, "lost", "SIGTERM"),
        (by_sigkill, "lost", "supervisor died"),
    ],
)
def test_end_of_launch_ends_all_its_processes(
    machine: Machine, end_it: Callable[[Machine, Launch], None], state: str, message: str
) -> None:
    launch = machine.start(FAMILY + "time.sleep(1000)")
    pids = pids_of(machine, launch)
    assert len(alive(pids)) == 4
    end_it(machine, launch)
    status = machine.end(launch)
    assert status.state == state
    assert message in status.message
    assert alive(pids) == []
    assert machine.status(launch) == status


def test_ended_program_leaves_no_process(machine: Machine) -> None:
    launch = machine.start(FAMILY)
    assert machine.end(launch).exit_code == 0
    assert alive(pids_of(machine, launch)) == []


def test_cancel_before_start_is_kept(machine: Machine) -> None:
    launch = python_launch(machine.runs_dir, COUNTS)
    machine.at(launch).cancel()
    machine.at(launch).cancel()
    machine.start(COUNTS)
    assert machine.status(launch).state == "cancelled"
    assert not (machine.folder(launch) / "count").exists()


def test_cancelled_program_may_handle_sigterm(machine: Machine) -> None:
    code = (
        "import signal, time\n"
        "def bye(*_):\n    print('saved'); raise SystemExit(0)\n"
        "signal.signal(signal.SIGTERM, bye); open('up', 'w').write('1'); time.sleep(1000)"
    )
    launch = machine.start(code)
    machine.file(launch, "up")
    machine.at(launch).cancel()
    assert machine.end(launch).state == "cancelled"
    assert machine.log(launch) == "saved\n"


def test_program_that_ignores_sigterm_is_killed(machine: Machine) -> None:
    launch = machine.start(IGNORES_TERM, grace_s=0.5)
    machine.file(launch, "up")
    machine.at(launch).cancel()
    status = machine.end(launch)
    assert (status.state, status.exit_code) == ("cancelled", -signal.SIGKILL)


def test_program_killed_from_outside_is_lost(machine: Machine) -> None:
    launch = machine.start(FOREVER)
    machine.file(launch, "up")
    process = json.loads(until_process(machine, launch).read_text())
    os.kill(process["pid"], signal.SIGKILL)
    status = machine.end(launch)
    assert (status.state, status.exit_code) == ("lost", None)
    assert "killed from outside" in status.message


def test_time_limit_ends_program_with_code_124(machine: Machine) -> None:
    launch = machine.start(FOREVER, time_limit_s=0.2)
    status = machine.end(launch)
    assert (status.state, status.exit_code) == ("exited", 124)
    assert "time limit of 0.2 s" in status.message


def test_lease_runs_out_without_status_calls(machine: Machine) -> None:
    launch = machine.start(FOREVER, lease_s=1.0)
    exit_file = machine.control(launch) / "exit.json"
    wait_until(exit_file.exists)
    status = machine.status(launch)
    assert status.state == "lost"
    assert "nobody asked" in status.message


def test_status_renews_the_lease(machine: Machine) -> None:
    launch = machine.start("import time; time.sleep(4)", lease_s=2.0)
    assert machine.end(launch).exit_code == 0


def test_lost_launch_with_cancel_counts_as_cancelled(machine: Machine) -> None:
    launch = machine.start(FOREVER)
    machine.file(launch, "up")
    supervisor = supervisor_pid(machine.control(launch))
    os.kill(supervisor, signal.SIGSTOP)
    machine.at(launch).cancel()
    os.kill(supervisor, signal.SIGKILL)
    assert machine.end(launch).state == "cancelled"


def test_reused_pid_of_supervisor_is_left_alone(
    machine: Machine,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as innocent:
        control = LaunchFolder(machine.base, "run.1")
        control.make()
        claim = control.take_claim(pid=innocent.pid)
        assert claim is not None
        control.write_process(pid=innocent.pid, cores=[0], gpus="")
        assert LaunchFolder(machine.base, "run.1").status().state == "running"
        os.close(claim)
        LaunchFolder(machine.base, "run.1").cancel()
        assert LaunchFolder(machine.base, "run.1").status().state == "cancelled"
        assert innocent.poll() is None
        innocent.kill()


def test_launch_of_same_name_elsewhere_is_left_alone(machine: Machine, tmp_path: Path) -> None:
    other = Machine(tmp_path / "other")
    mine, theirs = machine.start(FOREVER), other.start(FOREVER)
    machine.launches.append(mine)
    try:
        machine.file(mine, "up")
        other.file(theirs, "up")
        os.kill(supervisor_pid(machine.control(mine)), signal.SIGKILL)
        assert machine.end(mine).state == "lost"
        assert other.status(theirs).state == "running"
    finally:
        other.at(theirs).cancel()
        other.end(theirs)


def test_launch_waits_for_cores_and_can_be_cancelled(machine: Machine, own_cores: Path) -> None:
    manager = CPUManager(folder=own_cores)
    lease = manager.try_allocate(len(manager.pool))
    assert lease is not None, "the cores are taken"
    try:
        waits = machine.start(COUNTS, launch_id="waits.1")
        given_up = machine.start(COUNTS, launch_id="given_up.1")
        assert machine.status(waits).state == "waiting"
        machine.at(given_up).cancel()
        assert machine.end(given_up).state == "cancelled"
        assert machine.status(waits).state == "waiting"
    finally:
        lease.release()
    assert machine.end(waits).exit_code == 0
    assert not (machine.folder(given_up) / "count").exists()


def test_launch_holds_its_core_for_its_own_processes(machine: Machine) -> None:
    code = (
        "import os; from p2p.training.cpu_manager import CPUManager\n"
        "lease = CPUManager().try_allocate(1)\n"
        "open('cores.tmp', 'w').write(f'{sorted(os.sched_getaffinity(0))} {lease.cores}')\n"
        "os.rename('cores.tmp', 'cores'); import time; time.sleep(1000)"
    )
    launch = machine.start(code)
    core = json.loads((until_process(machine, launch)).read_text())["cores"][0]
    assert machine.file(launch, "cores") == f"[{core}] ({core},)"
    assert core not in CPUManager(folder=machine.base.parent / "locks").free_cores()


def until_process(machine: Machine, launch: Launch) -> Path:
    path = machine.control(launch) / "process.json"
    wait_until(path.exists)
    return path


@pytest.mark.parametrize(
    ("fields", "reason"), [({"cores": 4000}, "4000 cores"), ({"gpus": 1}, "GPU")]
)
def test_launch_refuses_more_cores_or_gpus_than_exist(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, fields: dict[str, int], reason: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    status = machine.end(machine.start(COUNTS, **fields))
    assert (status.state, status.exit_code) == ("exited", 125)
    assert reason in status.message


def test_gpu_is_given_to_one_launch_that_asks_for_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    code = "import os; open('gpu', 'w').write('<' + os.environ['CUDA_VISIBLE_DEVICES'] + '>'); "
    first = machine.start(code + FOREVER, launch_id="first.1", gpus=1)
    assert machine.file(first, "gpu") == "<3>"
    second = machine.start(code, launch_id="second.1", gpus=1)
    assert machine.status(second).state == "waiting"
    machine.at(first).cancel()
    assert machine.end(second).exit_code == 0
    third = machine.start(code, launch_id="third.1")
    machine.end(third)
    assert machine.file(third, "gpu") == "<>"


def test_launch_gets_named_secrets_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "of-the-scheduler")
    code = "import os; print(sorted(os.environ.items()))"
    secrets = {"MY_KEY": "k-e-y", "OTHER_KEY": "o-t-h-e-r"}
    launch = machine.start(code, secrets=secrets, secrets_named=("MY_KEY", "NOT_SET"))
    machine.end(launch)
    said = machine.log(launch)
    assert "('MY_KEY', 'k-e-y')" in said
    assert "o-t-h-e-r" not in said
    assert "of-the-scheduler" not in said
    kept = b"".join(path.read_bytes() for path in machine.base.rglob("*.json"))
    assert b"k-e-y" not in kept


def test_missing_program_ends_with_127(machine: Machine) -> None:
    spec = python_launch(machine.runs_dir, "").spec.model_copy(update={"command": ("no-such",)})
    launch = Launch(launch_id="run.1", spec=spec, runs_dir=machine.runs_dir)
    machine.launch(launch)
    assert machine.end(launch).exit_code == 127
    assert "no-such cannot be started" in machine.log(launch)


def test_missing_interpreter_raises_and_can_be_retried(
    machine: Machine,
) -> None:
    launch = python_launch(machine.runs_dir, "exit(0)")
    with pytest.raises(LaunchError, match="/no/python"):
        machine.launch(launch, python="/no/python")
    assert machine.status(launch).state == "absent"
    machine.launch(launch)
    assert machine.end(launch).exit_code == 0


def test_end_notifies_listener_at_long_path(machine: Machine) -> None:
    machine.base = machine.base / ("deep" * 30)
    with notify.listen(machine.base) as listening:
        listening.settimeout(60)
        launch = machine.start("exit(0)")
        assert listening.recv(10)
        assert machine.status(launch).state == "exited"
    notify.notify(machine.base)  # nobody there


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.1, 0.3])
def test_start_after_killed_starter_runs_once(machine: Machine, after_s: float) -> None:
    starter = os.fork()
    if starter == 0:
        machine.start(COUNTS)
        os._exit(0)
    time.sleep(after_s)
    os.kill(starter, signal.SIGKILL)
    os.waitpid(starter, 0)
    launch = machine.start(COUNTS)
    assert machine.end(launch).exit_code == 0
    assert machine.file(launch, "count") == "x"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a..b", "a\n", "x" * 300, "ü"])
def test_launch_folder_rejects_unsafe_ids(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a launch"):
        LaunchFolder(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
