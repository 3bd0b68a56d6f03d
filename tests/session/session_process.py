"""Sessions as processes of their own, to be watched, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from processes import descendants

from p2p.commands.console import run_app
from p2p.commands.run import program
from p2p.records.iteration_record import SessionRecord

TINY: dict[str, Any] = {
    "env_id": "InvertedPendulum-v5",
    "num_envs": 4,
    "num_steps": 32,
    "num_minibatches": 4,
    "update_epochs": 2,
    "total_timesteps": 1024,
    "max_episode_steps": 50,
    "num_evals": 2,
    "num_eval_rounds": 1,
    "checkpoint_interval": 256,
}
TWO_ROUNDS: dict[str, Any] = {
    "model": "builtin",
    "train": TINY,
    "max_iterations": 2,
    "pass_threshold": 1.0,
    "videos": False,
    "judge_episodes": 3,
}
"""Too short to pass: two iterations with a revision between them."""
ENDLESS: dict[str, Any] = {**TWO_ROUNDS, "train": {**TINY, "total_timesteps": 50_000_000}}


@dataclass
class Sessions:
    """Starts sessions below a folder, with cores of their own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        runtime = self.folder / "runtime"
        runtime.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "p2p.session.run_session", "--runs-dir", self.runs, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "P2P_CORE_LOCKS": str(runtime), **self.env}, cwd=self.folder,
        )  # fmt: skip
        self.started.append(process)
        return process

    def new(
        self, name: str, loop: dict[str, Any], prompt: str = "balance"
    ) -> subprocess.Popen[str]:
        config = self.folder / f"{name}.json"
        config.write_text(json.dumps(loop))
        return self.start(
            "--session-id", name, "--prompt", prompt, "--loop-config", str(config)
        )  # fmt: skip

    def resume(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        return self.start("--session-id", name, "--resume", *arguments)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def record(self, name: str) -> SessionRecord:
        return SessionRecord(self.runs / name)

    def clean_up(self) -> None:
        for process in self.started:
            if process.poll() is None:
                kill_all(process)
            process.communicate()


def run_here(*arguments: object) -> int:
    """The program in this process; its exit status."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            run_app(program, "run_session", [str(each) for each in arguments])
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(ended.value.code or 0)


def kill_all(process: subprocess.Popen[str]) -> None:
    """As when the machine goes down: the process and all below it, at once."""
    stopped: set[int] = set()
    # Stopped first, level by level: what one of them starts meanwhile would be left behind.
    while new := {process.pid, *descendants(process.pid)} - stopped:
        for pid in new:
            _send(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _send(pid, signal.SIGKILL)
    process.wait()


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def status(record: SessionRecord) -> str:
    found = record.read_status()
    return found.status if found else "none"
