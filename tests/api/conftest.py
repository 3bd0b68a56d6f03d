"""A server over a runs folder with small, real files in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from small_runs import TOKEN, make_session

from p2p.api.app import create_app


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    make_session(folder, "session_a", prompt="run forward fast")
    return folder


@pytest.fixture
def anybody(runs: Path) -> Iterator[TestClient]:
    """A client that has not shown the token."""
    with TestClient(create_app(runs, token=TOKEN), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def client(anybody: TestClient) -> TestClient:
    """A script with the token."""
    anybody.headers["Authorization"] = f"Bearer {TOKEN}"
    return anybody
