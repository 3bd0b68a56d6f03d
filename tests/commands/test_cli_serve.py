"""`p2p serve`: starts, says where it is, serves page and API, and ends when told to."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Cli, start

ADDRESS = re.compile(r"http://(127\.0\.0\.1:\d+)/\?token=([\w-]+)")


def get(address: str, path: str, token: str = "") -> HTTPResponse:
    connection = HTTPConnection(address, timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    return connection.getresponse()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A process that serves, its address and its token."""
    process = start("serve", "--port", 0, "--runs-dir", "new/runs", cwd=tmp_path)
    try:
        assert process.stdout is not None
        said = process.stdout.readline() + process.stdout.readline()
        found = ADDRESS.search(said)
        assert found, said
        yield process, found[1], found[2]
    finally:
        process.kill()
        process.communicate()


def test_one_process_serves_page_and_api_and_ends_on_an_interrupt(
    server: tuple[subprocess.Popen[str], str, str],
) -> None:
    process, address, token = server
    assert b'<div id="root">' in get(address, "/e2e").read()
    assert get(address, "/api/sessions", token).read() == b"[]"
    # A page that listens must not keep the server from ending.
    stream = get(address, "/api/live", token)
    assert stream.readline().startswith(b"event: sessions")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    stream.close()
    assert process.returncode == 0
    assert "Traceback" not in said


def test_the_api_stays_closed_without_the_token(
    server: tuple[subprocess.Popen[str], str, str],
) -> None:
    _, address, _ = server
    assert get(address, "/api/sessions").status == 401
    assert get(address, "/api/sessions", "guessed").status == 401


def test_a_port_that_is_taken_is_said(
    server: tuple[subprocess.Popen[str], str, str], p2p: Cli
) -> None:
    port = server[1].rpartition(":")[2]
    outcome = p2p("serve", "--port", port)
    assert outcome.status == 2
    assert "--port" in outcome.error
    assert "--port 0" in outcome.error


def test_an_address_that_is_not_ours_is_said(p2p: Cli) -> None:
    outcome = p2p("serve", "--host", "no.such.host.invalid")
    assert outcome.status == 2
    assert "--host" in outcome.error


def test_the_demo_shows_finished_work_of_every_kind_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    process = start("serve", "--demo", "--port", 0, cwd=tmp_path)
    try:
        assert process.stdout is not None
        found = ADDRESS.search(process.stdout.readline() + process.stdout.readline())
        assert found
        address, token = found.groups()

        def read(path: str) -> Any:
            return json.loads(get(address, path, token).read())

        rows = read("/api/sessions")
        session = next(row for row in rows if not row["session_id"].startswith("bm_"))
        assert session["status"] == "passed"
        iterations = read(f"/api/sessions/{session['session_id']}/loop-iterations")
        video = iterations[-1]["videos"][0]["url"]
        assert get(address, video, token).read(12)[4:8] == b"ftyp"
        policy = get(address, f"/api/sessions/{session['session_id']}/policy", token)
        assert policy.read(2) == b"PK"
        (benchmark,) = read("/api/benchmarks")
        assert (benchmark["state"], benchmark["unmeasured"]) == ("completed", 0)
        (played,) = read("/api/selfplay")
        assert read(f"/api/selfplay/{played['run_id']}/games")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert list((tmp_path / "tmp").glob("p2p-demo-*")) == []
    assert not (tmp_path / "runs").exists()


def test_the_demo_has_no_place_of_its_own(p2p: Cli) -> None:
    outcome = p2p("serve", "--demo", "--runs-dir", "runs")
    assert outcome.status == 2
    assert "--runs-dir" in outcome.error
