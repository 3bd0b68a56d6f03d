"""`p2p serve`: starts, says where it is, serves page and API, and ends when told to."""

from __future__ import annotations

import json
import re
import signal
import subprocess
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


def address_and_token(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    found = ADDRESS.search(process.stdout.readline() + process.stdout.readline())
    assert found
    return found[1], found[2]


@pytest.mark.process
def test_one_process_serves_page_and_api_to_who_has_the_token_and_ends_on_an_interrupt(
    tmp_path: Path, p2p: Cli
) -> None:
    process = start("serve", "--port", 0, "--runs-dir", "new/runs", cwd=tmp_path)
    try:
        address, token = address_and_token(process)
        assert b'<div id="root">' in get(address, "/e2e").read()
        assert get(address, "/api/sessions", token).read() == b"[]"
        assert get(address, "/api/sessions").status == 401
        assert get(address, "/api/sessions", "guessed").status == 401
        taken = p2p("serve", "--port", address.rpartition(":")[2])
        assert taken.status == 2
        assert "--port: " in taken.error
        assert "--port 0" in taken.error
        # A page that listens must not keep the server from ending.
        stream = get(address, "/api/live", token)
        assert stream.readline().startswith(b"event: sessions")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        stream.close()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "Traceback" not in said


def test_an_address_that_is_not_ours_is_said(p2p: Cli) -> None:
    outcome = p2p("serve", "--host", "no.such.host.invalid")
    assert outcome.status == 2
    assert "--host" in outcome.error


@pytest.mark.process
def test_the_demo_shows_finished_work_of_every_kind_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    process = start("serve", "--demo", "--port", 0, cwd=tmp_path)
    try:
        address, token = address_and_token(process)

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
