"""`unstable watch` and `unstable play` in a real terminal, and without one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unstable.commands import UsageError
from unstable.commands.play import play
from unstable.config import ConfigError
from unstable.trackers import Tracker

SECONDS = 90.0
"""For a command to answer on a busy machine."""
LEFT_FULL_SCREEN = "\x1b[?1049l"


class Screen:
    """A process in a terminal of its own, and everything it wrote."""

    def __init__(self, *arguments: str, columns: int = 100, rows: int = 30) -> None:
        self.raw = ""
        self._end, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._found = 0
        # Of a session of its own the terminal is in control: Ctrl-C arrives as a signal.
        command = ["setsid", "--ctty", sys.executable, "-m", "unstable.cli", *arguments]
        self.process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
        )  # fmt: skip
        os.close(inside)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the text comes, after the one that was waited for before."""
        until = time.monotonic() + SECONDS
        while (place := self.text.find(text, self._found)) < 0:
            assert time.monotonic() < until, f"no {text!r} in {self.text!r}"
            assert self._read(), f"ended without {text!r}: {self.text!r}"
        self._found = place + len(text)

    def end(self) -> int:
        """The exit status; what was written last is read."""
        while self._read():
            pass
        return self.process.wait(timeout=SECONDS)

    def leave(self, key: str) -> int:
        """Press a key until it is gone: readline sees a signal that comes too early only then.

        Not soon again: a second signal to one that is leaving would end it in another way.
        """
        for _ in range(6):
            self.type(key)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=20)
                break
        return self.end()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b(\[[0-9;?<>=]*[A-Za-z]|[()][A-Z0-9]|[=>])", "", self.raw)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._end], [], [], SECONDS)
        assert ready, f"silent for {SECONDS} s after {self.text!r}"
        try:
            data = os.read(self._end, 65536)
        except OSError:  # the other end is closed
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def screen(*arguments: str, **size: int) -> Iterator[Screen]:
    made = Screen(*arguments, **size)
    try:
        yield made
    finally:
        made.close()


def unstable(*arguments: str, typed: str = "", cwd: Path | None = None):
    return subprocess.run(
        [sys.executable, "-m", "unstable.cli", *arguments],
        input=typed, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=cwd,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "outputs" / "2026-11-15" / "10-00-00" / "demo"
    tracker = Tracker("demo", run_dir=folder)
    tracker.log_learner({"step": 1, "loss": 0.5})
    tracker.log_model_pool({}, {"ckpt-1": {"mu": 25.5, "sigma": 8.25}}, {})
    tracker.flush()
    return tracker


def test_watch_follows_a_run_in_a_terminal(run):
    with screen("watch", run.get_run_dir()) as seen:
        seen.wait_for("step 1")
        run.log_learner({"step": 2, "loss": 0.25})
        seen.wait_for("step 2")
        seen.type("2")
        seen.wait_for("25.5 ± 8.2")
        seen.type("q")
        assert seen.end() == 0
        assert LEFT_FULL_SCREEN in seen.raw


def test_ctrl_c_restores_the_terminal(run):
    with screen("watch", run.get_run_dir(), columns=80, rows=24) as seen:
        seen.wait_for("step 1")
        seen.type("\x03")
        assert seen.end() == 0
        assert LEFT_FULL_SCREEN in seen.raw


def test_watch_without_terminal_prints_once(run, tmp_path):
    ended = unstable("watch", cwd=tmp_path)  # the newest run below outputs/
    assert ended.returncode == 0, ended.stderr
    assert "demo  step 1" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_watch_prints_json(run):
    view = json.loads(unstable("watch", run.get_run_dir(), "--json").stdout)
    assert view["run_name"] == "demo"
    assert view["curves"] == [{"name": "loss", "values": [0.5]}]


def test_watch_without_run_exits_2(tmp_path):
    ended = unstable("watch", "nowhere", cwd=tmp_path)
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert ended.stdout == ""


def test_play_runs_a_whole_game_in_a_terminal():
    with screen("play", "random-legal", "--game", "TicTacToe-v0", "--seed", "3") as seen:
        seen.wait_for("your move> ")
        seen.type("?\n")
        seen.wait_for("legal moves: [0] [1] [2] [3] [4] [5] [6] [7] [8]")
        seen.type("4\n")
        seen.wait_for("[Player 1]")
        seen.wait_for("your move> ")
        seen.type("4\n")
        seen.wait_for("already occupied")
        for cell in range(9):
            seen.type(f"{cell}\n")
        assert seen.end() == 0
        assert re.search(r"You have (won|lost)\.|A draw\.", seen.text)
        assert "Traceback" not in seen.text


@pytest.mark.parametrize(("key", "status"), [("\x04", 0), ("\x03", 130)])
def test_play_quits_with_ctrl_d_or_ctrl_c(key, status):
    with screen("play", "random-legal", "--game", "Nim-v0") as seen:
        seen.wait_for("your move> ")
        assert seen.leave(key) == status
        assert "You left." in seen.text
        assert "Traceback" not in seen.text


def test_play_reads_a_pipe_and_prints_json():
    typed = "".join(f"{cell}\n" for cell in (4, 0, 8, 2, 6, 1, 3, 5, 7))
    ended = unstable("play", "random-legal", "--seat", "1", "--seed", "1", "--json", typed=typed)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["finished"]
    assert (result["game"], result["seat"], result["seed"]) == ("TicTacToe-v0", 1, 1)
    assert sum(result["rewards"].values()) == 0
    assert {move["seat"] for move in result["moves"]} == {0, 1}
    assert "your move>" in ended.stderr


def test_play_uses_a_remote_model(endpoint):
    typed = "".join(f"{cell}\n" for cell in (4, 0, 8, 2, 6, 1, 3, 5, 7))
    ended = unstable("play", "someone/strong", "--seed", "1", "--json", typed=typed)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["finished"]
    theirs = [move["move"] for move in result["moves"] if move["seat"] == 1]
    assert len(theirs) == len(endpoint.asked) > 0
    assert all(body["model"] == "someone/strong" for body in endpoint.asked)


@pytest.mark.parametrize(
    ("who", "options", "said"),
    [
        ("random-legal", {"game": "No-v0"}, "--game No-v0"),
        ("random-legal", {"game": "Sudoku-v0", "seat": 1}, "1 seats"),
        ("random-legal", {"seat": 2}, "--seat 2"),
        ("random-legal", {"players": 3}, "for 2, not for 3|TicTacToe-v0 cannot be played"),
        ("random-legal", {"game": "Breakthrough-v0"}, "moves of Breakthrough-v0"),
        ("nobody", {}, "nobody is neither a folder"),
        (".", {}, "not a run"),
    ],
)
def test_play_refuses_impossible_games(tmp_path, monkeypatch, who, options, said):
    monkeypatch.chdir(tmp_path)
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((UsageError, ConfigError), match=said):
        play(who, **options)
