"""`unstable train` on a Ray of its own: interrupted, killed, continued."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import command_line, descendants
from small_run import learned_steps, new_run

pytestmark = pytest.mark.slow


def unstable(*arguments: object) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell would have it."""
    return subprocess.Popen(
        [sys.executable, "-m", "unstable.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        | {"RAY_worker_niceness": "0"},
    )  # fmt: skip


def until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


PARTS = ("Tracker", "StepBuffer", "ModelPool", "Collector", "StandardLearner", "VLLMActor")


def parts_of(process: subprocess.Popen[str]) -> list[int]:
    """Their processes, when all are there: what a state's buffer has may be learned before."""
    found: list[int] = []

    def complete() -> bool:
        found[:] = [pid for pid in descendants(process.pid) if is_part(pid)]
        return len(found) == len(PARTS)

    until(complete, 120)
    return found


def is_part(pid: int) -> bool:
    """Ray names processes by class and method, with an actor's own name before them or not."""
    return re.match(rf"ray::(\w+:)?({'|'.join(PARTS)})\b", command_line(pid)) is not None


def gone(pids: list[int]) -> bool:
    return not any(map(is_part, pids))


def test_ray_run_cleans_up_and_resumes(tmp_path: Path, model: str) -> None:
    _, folder = new_run(tmp_path / "run", model, mode="ray", updates=1000)
    run = folder.path

    process = unstable("resume", run)
    until(lambda: (run / "states" / "step-1").exists() or process.poll() is not None, 240)
    started = parts_of(process)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C reaches Ray's processes too
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert f"unstable resume {run}" in err
    assert "Traceback" not in err
    assert json.loads((run / "status.json").read_text())["status"] == "cancelled"
    until(lambda: gone(started), 30)
    step = int(folder.states()[-1].name.removeprefix("step-"))

    process = unstable("resume", run)
    until(lambda: (run / "states" / f"step-{step + 2}").exists() or process.poll() is not None, 240)
    started = parts_of(process)
    process.kill()
    process.communicate()
    until(lambda: gone(started), 30)
    step = int(folder.states()[-1].name.removeprefix("step-"))

    process = unstable("resume", run, "--updates", step + 1, "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out)["step"] == step + 1
    assert learned_steps(run) == [*range(1, step + 2)]
