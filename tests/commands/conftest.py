"""How the tests of the commands call them."""

from __future__ import annotations

import contextlib
import io
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Cli, Outcome

from p2p.cli import main
from p2p.config import TrainConfig
from p2p.settings import get_settings


@pytest.fixture
def p2p(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Call `p2p` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    get_settings.cache_clear()  # they hold the folder of the first call
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        status: Any = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main([str(argument) for argument in arguments])
            except SystemExit as end:
                status = end.code or 0
            finally:
                signal.signal(signal.SIGTERM, before)
        return Outcome(status, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def config_file(tmp_path: Path, small_config: TrainConfig) -> Path:
    """The small run as a file for --config."""
    path = tmp_path / "small.json"
    path.write_text(small_config.to_json())
    return path
