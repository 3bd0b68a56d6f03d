"""Sessions whose models are answered by a provider on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from provided_session import ProvidedSessions, provided_sessions


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what was trained once is kept."""
    return tmp_path_factory.getbasetemp() / "trained_once"


@pytest.fixture
def provided(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProvidedSessions]:
    """Sessions below a folder of this test's own."""
    with provided_sessions(tmp_path, kept, monkeypatch) as sessions:
        yield sessions
