"""Trials that are forked: nothing of one is found by the next, and all end with their parent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sandbox_runner import INSIDE, Runner

WARM = ("numpy",)
CHANGE = """
import json, numpy, os, sys
numpy.asarray = json.dumps = None
sys.modules["planted"] = sys
os.environ["PLANTED"] = "1"
open("planted", "w").write("1")
send(b"done")
"""
LOOK = """
import json, numpy, os, sys
found = [numpy.asarray is None, json.dumps is None, "planted" in sys.modules,
         "PLANTED" in os.environ, os.path.exists("planted")]
places = [os.environ["HOME"], os.environ["TMPDIR"], os.getcwd()]
descriptors = [fd for fd in range(300) if os.path.exists(f"/proc/self/fd/{fd}")]
send(json.dumps([found, places, numpy.random.random(), descriptors]).encode())
"""


def look(runner: Runner) -> tuple[list[bool], list[str], float, list[int]]:
    with runner.start(LOOK, warm=WARM) as process:
        line = process.poll(30)
        assert process.parent_pid != os.getpid()
        assert process.wait(30).ok
    assert line is not None
    found, places, number, descriptors = json.loads(line)
    return found, places, number, descriptors


def test_nothing_of_a_forked_trial_is_found_by_the_next(tmp_path: Path) -> None:
    seen = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        runner = Runner(folder)
        if number == 1:
            assert runner(CHANGE, warm=WARM).lines == [b"done"]
        else:
            seen.append(look(runner))
            assert set(seen[-1][1]) == {str(folder)}
            assert not any(seen[-1][0])
    assert seen[0][2] != seen[1][2]
    assert seen[0][3] == seen[1][3] == [0, 1, 2, 3]


def test_forked_trials_have_the_layers_of_others(sandbox: Runner) -> None:
    layers = []
    for warm in ((), WARM):
        with sandbox.start("send(b'up')", warm=warm) as process:
            layers.append(process.layers)
    assert layers[0] == layers[1]


def test_forked_trials_are_as_nice_as_the_thread_that_starts_them(sandbox: Runner) -> None:
    source = "import os; send(str(os.getpriority(os.PRIO_PROCESS, 0)).encode())"

    def nicer() -> list[bytes]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
        return sandbox(source, warm=WARM).lines

    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert sandbox(source, warm=WARM).lines == [str(here).encode()]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(nicer).result() == [b"7"]
    assert sandbox(source, warm=WARM).lines == [str(here).encode()]


def test_without_its_server_a_trial_ends_and_the_next_has_another(sandbox: Runner) -> None:
    with sandbox.start("send(b'up'); import time; time.sleep(60)", warm=WARM) as process:
        assert process.poll(30) == b"up"
        os.kill(process.parent_pid, signal.SIGKILL)
        assert process.wait(30).reason == "killed from outside"
    assert sandbox("send(b'fine')", warm=WARM).lines == [b"fine"]


def test_modules_that_cannot_be_imported_leave_a_process_of_its_own(sandbox: Runner) -> None:
    with sandbox.start("send(b'up')", warm=("no_such_module",)) as process:
        assert process.parent_pid == os.getpid()
        assert process.poll(30) == b"up"


def test_where_no_child_can_be_watched_a_trial_has_a_process_of_its_own(
    sandbox: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with sandbox.start("send(b'up')", warm=WARM) as process:
        assert process.parent_pid == os.getpid()
        assert process.poll(30) == b"up"


def test_server_and_trial_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from p2p.sandbox import Sandbox, start
sandbox = Sandbox(
    folder=Path({str(tmp_path)!r}), import_paths=(Path({str(INSIDE)!r}),), warm=("numpy",)
)
process = start("run_source", {{"source": "import time; send(b'up'); time.sleep(300)"}}, sandbox)
process.poll()
print(process.parent_pid, process.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len({*pids, parent.pid}) == 3
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(timeout=60)
