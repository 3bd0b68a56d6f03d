"""Listings read: none makes a folder or a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from p2p.cli import app


@pytest.mark.parametrize("command", ["sessions", "jobs list", "nodes list"])
def test_a_listing_writes_nothing(command: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*command.split(), "--runs-dir", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    assert list(tmp_path.iterdir()) == []
