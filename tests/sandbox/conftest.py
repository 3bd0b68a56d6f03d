from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sandbox_runner import Runner, run_before

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_NAMESPACES = "from p2p.sandbox import kernel; kernel.enter_namespaces = lambda *_: []"


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Runner]:
    """A sandbox to run source in; afterwards the parent must still be able to run another."""
    folder = tmp_path / "folder"
    folder.mkdir()
    runner = Runner(folder)
    yield runner
    after = tmp_path / "after"
    after.mkdir()
    assert Runner(after)("send(b'fine')").lines == [b"fine"]


@pytest.fixture
def without_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes as where the kernel gives out no namespaces, and so no tmpfs."""
    run_before(monkeypatch, tmp_path, NO_NAMESPACES)
