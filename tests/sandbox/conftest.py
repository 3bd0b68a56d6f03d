from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sandbox_runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
