"""What the scheduler's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import Machine


@pytest.fixture
def own_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Core locks of this test alone, so that nothing else on the machine makes it wait."""
    folder = tmp_path / "locks"
    monkeypatch.setenv("P2P_CORE_LOCKS", str(folder))
    return folder


@pytest.fixture
def machine(tmp_path: Path, own_cores: Path) -> Iterator[Machine]:
    """A machine whose launches end with the test."""
    made = Machine(tmp_path)
    yield made
    for launch in made.launches:
        made.at(launch).cancel()
    for launch in made.launches:
        made.end(launch)
