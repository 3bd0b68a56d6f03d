"""Sessions started over HTTP are jobs: they run without the server, and stop when told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from processes import wait_until
from small_runs import signed_in

from p2p.records.iteration_record import SessionRecord
from p2p.training.cpu_manager import CPUManager

SHORT: dict[str, Any] = {
    "prompt": "run forward fast",
    "env_id": "HalfCheetah-v5",
    "model": "builtin",
    "max_iterations": 1,
    "videos": False,
    "settings": {"total_timesteps": 2048, "num_envs": 2, "num_steps": 64},
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No session in it yet, and cores of its own."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("P2P_CORE_LOCKS", str(runtime))
    return tmp_path / "runs"


@pytest.fixture
def cleanly(client: TestClient) -> Iterator[TestClient]:
    """Ends every job that a test has left."""
    yield client
    for job in client.get("/api/scheduler/jobs", params={"unended": True}).json():
        client.post(f"/api/scheduler/jobs/{job['job_id']}/cancel")
    wait_until(lambda: not client.get("/api/scheduler/jobs", params={"unended": True}).json())


@pytest.mark.slow
def test_session_ends_without_the_server(runs: Path) -> None:
    with signed_in(runs) as client:
        answer = client.post("/api/sessions", json=SHORT)
        assert answer.status_code == 201, answer.text
        session_id = answer.json()["session_id"]
    record = SessionRecord(runs / session_id)
    wait_until(lambda: record.result.read() is not None, 300)
    wait_until(lambda: record.derive_status() in ("passed", "max_iterations"), 60)
    with signed_in(runs) as client:
        job = f"/api/scheduler/jobs/{answer.json()['job_id']}"
        wait_until(lambda: client.get(job).json()["state"] == "succeeded", 60)
        assert client.get(f"/api/sessions/{session_id}").json()["iterations"] == 1


def test_request_options_reach_the_session(
    client: TestClient, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.api.sessions.ensure_scheduler", lambda _: None)
    options: dict[str, Any] = {
        "use_zoo_preset": True, "hp_tuning": False, "thinking_effort": "low",
        "review_reward": False, "judge_episodes": 5, "confirm_episodes": 7, "cores_per_run": 1,
        "vlm_model": "ollama:llava", "motion_trail": True, "refined_initial_frame": False,
        "visual_criteria": ["the foot stays flat"],
    }  # fmt: skip
    answer = client.post("/api/sessions", json={**SHORT, **options})
    assert answer.status_code == 201, answer.text
    shown = client.get(f"/api/sessions/{answer.json()['session_id']}").json()
    assert {name: shown["config"][name] for name in options} == options
    assert "--zoo-preset --no-hp-tuning" in shown["command"]
    refused = client.post("/api/sessions", json={**SHORT, "thinking_effort": "deep"})
    assert (refused.status_code, "thinking_effort" in refused.text) == (422, True)


@pytest.mark.process
def test_running_session_can_be_stopped_and_resumed(cleanly: TestClient) -> None:
    endless = {**SHORT, "settings": {**SHORT["settings"], "total_timesteps": 50_000_000}}
    manager = CPUManager()
    held = manager.try_allocate(len(manager.pool))
    assert held is not None
    held.sign(4711, "session_y/iter_2/base_seed_0")
    started = cleanly.post("/api/sessions", json=endless).json()
    there = f"/api/sessions/{started['session_id']}"
    pool = len(manager.pool)
    told = f"needs 1 core; held: {pool} of {pool} by process 4711 (session_y/iter_2/base_seed_0)"
    wait_until(lambda: cleanly.get(there).json()["waiting"] == told, 60)
    held.release()
    job = f"/api/scheduler/jobs/{started['job_id']}"
    wait_until(lambda: cleanly.get(there).json()["phase"] == "training", 300)
    assert cleanly.post(f"{there}/resume").status_code == 409, "it runs"
    assert cleanly.post(f"{there}/stop").status_code == 200
    wait_until(lambda: cleanly.get(job).json()["state"] == "cancelled", 120)
    assert cleanly.get(there).json()["status"] == "cancelled"
    resumed = cleanly.post(f"{there}/resume", json={"max_iterations": 2}).json()
    assert resumed["job_id"] != started["job_id"]
    wait_until(lambda: cleanly.get(there).json()["status"] == "running", 120)


@pytest.mark.process
def test_session_out_of_time_resumes_with_more(cleanly: TestClient) -> None:
    started = cleanly.post("/api/sessions", json={**SHORT, "max_minutes": 0.01}).json()
    there = f"/api/sessions/{started['session_id']}"

    def ended(job_id: str) -> dict[str, Any]:
        job = f"/api/scheduler/jobs/{job_id}"
        unended = ("pending", "starting", "running")
        wait_until(lambda: cleanly.get(job).json()["state"] not in unended, 300)
        assert cleanly.get(job).json()["state"] == "succeeded"
        found: dict[str, Any] = cleanly.get(there).json()
        return found

    first = ended(started["job_id"])
    assert (first["status"], first["phase"]) == ("time_exhausted", "ended")
    assert first["resumable"]
    assert "its time of 0.01 minutes is used up" in first["error"]
    assert "--max-minutes 0.01" in first["command"]
    so = {"status": "time_exhausted"}
    wait_until(lambda: len(cleanly.get("/api/sessions", params=so).json()) == 1)
    more = first["minutes_to_go_on"]
    assert more * 60 >= first["result"]["seconds"] + 0.6
    # Without a number it is given as much again; with one, that.
    second = ended(cleanly.post(f"{there}/resume").json()["job_id"])
    assert (second["status"], second["config"]["max_minutes"]) == ("time_exhausted", more)
    assert cleanly.post(f"{there}/resume", json={"max_minutes": 0}).status_code == 422
    assert cleanly.post(f"{there}/resume", json={"max_minutes": 60}).status_code == 200
    last = cleanly.get(there).json()
    assert last["minutes_to_go_on"] == last["config"]["max_minutes"] == 60
    wait_until(lambda: cleanly.get(there).json()["phase"] not in ("ended", "intent"), 300)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": ""}, "prompt"),
        ({"env_id": "Nothing-v0"}, "Nothing-v0"),
        ({"model": "nobody:knows"}, "nobody"),
        ({"model": "anthropic:claude-x"}, "ANTHROPIC_API_KEY"),
        ({"max_iterations": -1}, "max_iterations"),
        ({"settings": {"learning_rat": 1}}, "learning_rate"),
        ({"settings": {"unsafe_local": True}}, "unsafe_local"),
        ({"budget_usd": -1}, "budget_usd"),
        ({"max_minutes": 0}, "max_minutes"),
        ({"seeds": 0}, "seeds"),
        ({"criteria": [{"id": "x"}]}, "criteria"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_session_request_names_field_and_starts_nothing(
    client: TestClient,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    named: str,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    answer = client.post("/api/sessions", json={**SHORT, **change})
    assert answer.status_code == 422
    assert named in answer.json()["detail"]
    assert not list(runs.glob("session_*"))
    assert client.get("/api/scheduler/jobs").json() == []


def test_submit_job_goes_to_chosen_nodes(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.api.sessions.ensure_scheduler", lambda _: None)
    client.post("/api/scheduler/nodes", json={"node_id": "more", "backend": "local", "cores": 4})
    there, body = "/api/scheduler/jobs", {**SHORT, "cores": 4, "nodes": ["more"], "priority": 3}
    answer = client.post(there, json=body).json()
    job = client.get(f"{there}/{answer['job_id']}").json()
    assert (job["nodes"], job["priority"], job["title"]) == (["more"], 3, "run forward fast")
    assert job["runs"][0]["cores"] == 4
    assert client.get(f"/api/sessions/{answer['session_id']}").json()["prompt"] == SHORT["prompt"]
    for change, named in (
        ({"nodes": ["none"]}, "nodes"),
        ({"backend": "slurm"}, "backend"),
        ({"cores": 4000}, "cores"),
        ({"model": "nobody:knows"}, "nobody"),
        ({"settings": {"unsafe_local": True}}, "unsafe_local"),
    ):
        refused = client.post(there, json={**body, **change})
        assert (refused.status_code, named in refused.json()["detail"]) == (422, True), change
    assert len(client.get(there).json()) == 1


def test_nodes_can_be_added_checked_and_removed(client: TestClient) -> None:
    (local,) = client.get("/api/scheduler/nodes").json()
    assert local["node_id"] == "local"
    assert client.post("/api/scheduler/nodes/local/check").json()["usable"] is True
    node = {"node_id": "more", "backend": "local", "cores": 1}
    assert client.post("/api/scheduler/nodes", json=node).status_code == 201
    assert client.post("/api/scheduler/nodes", json=node).status_code == 409
    for bad in (
        {"node_id": "-oProxyCommand=x"},
        {"cores": 0},
        {"backend": "ssh"},
        {"host": "; rm"},
    ):
        answer = client.post("/api/scheduler/nodes", json={**node, "node_id": "bad", **bad})
        assert answer.status_code == 422, bad
    assert client.delete("/api/scheduler/nodes/more").status_code == 200
    assert client.delete("/api/scheduler/nodes/more").status_code == 404
    assert client.post("/api/scheduler/jobs/none/cancel").status_code == 404
