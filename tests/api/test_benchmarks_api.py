"""Benchmarks over HTTP: the report's own numbers, live, and put away with all their cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from processes import wait_until

from benchmark_folder import a_benchmark, a_case, end_case, idle_policy
from p2p.benchmark import running
from p2p.benchmark.gate import decide
from p2p.benchmark.records import gate_folder, read_benchmark
from p2p.benchmark.report import make_report
from p2p.benchmark.running import start
from p2p.files import save_model
from p2p.scheduler.store import Store

STILL = {"truth": "fingertip_speed", "threshold": 0.05}
IDLE = idle_policy(10, 2)
SUITE = """env_id,instruction,category,difficulty,truth,threshold
Reacher-v5,hold still,manipulation,easy,fingertip_speed,0.05
Reacher-v5,reach the target,manipulation,hard,reach_gap,0.03
"""


@pytest.fixture
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are taken in, and nothing runs them."""
    monkeypatch.setattr(running, "ensure_scheduler", lambda _: None)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def ended(runs: Path) -> str:
    """Three prompts: a pass, a miss, an error; nothing is measured yet."""
    made, folder = a_benchmark(
        runs, a_case(0, **STILL), a_case(1, difficulty="hard", **STILL), a_case(2, category="other")
    )
    spent = {"seconds": 120.0, "tokens": 1000, "model_calls": 3, "cost_usd": 0.5}
    end_case(folder, 0, "passed", 1.0, policy=IDLE, **spent)
    end_case(folder, 1, "max_iterations", 0.4, policy=IDLE, **spent)
    end_case(folder, 2, "error", message="nothing in it was understood")
    return made.benchmark_id


def test_benchmark_of_command_line_is_listed(client: TestClient, runs: Path) -> None:
    name = ended(runs)
    (row,) = client.get("/api/benchmarks").json()
    assert (row["benchmark_id"], row["state"], row["has_job"]) == (name, "completed", False)
    assert row["counts"] == {"passed": 1, "not_passed": 1, "error": 1}
    assert row["cost_usd"] == 1.0
    assert row["unmeasured"] == 2
    shown = client.get(f"/api/benchmarks/{name}").json()
    assert shown["overall"]["judged"]["passed"] == 1
    assert [group["name"] for group in shown["by_difficulty"]] == ["easy", "hard"]
    assert shown["benchmark"]["cases"][2]["category"] == "other"
    assert [(s["state"], s["ended"]) for s in shown["stages"]] == [("ended", 3)]
    assert client.get("/api/benchmarks/bm_0").status_code == 404


def test_show_benchmark_measures_nothing(client: TestClient, runs: Path) -> None:
    name = ended(runs)
    before = client.get(f"/api/benchmarks/{name}").json()
    assert before["overall"]["true"]["total"] == 0
    assert not (runs / name / "truth").exists()
    first, *_ = client.get(f"/api/benchmarks/{name}/cases").json()
    assert (first["true_pass"], first["truth_note"]) == (None, "not measured yet")
    made = read_benchmark(runs / name)
    assert made is not None
    report = make_report(made, runs / name)
    after = client.get(f"/api/benchmarks/{name}").json()
    assert after["unmeasured"] == 0
    for part in ("overall", "by_env", "agreement"):
        assert after[part] == json.loads(report.model_dump_json())[part]
    assert client.get(f"/api/benchmarks/{name}/cases").json()[0]["true_pass"] is True


def test_case_links_to_its_session_and_videos(client: TestClient, runs: Path) -> None:
    name = ended(runs)
    cases = client.get(f"/api/benchmarks/{name}/cases").json()
    assert [(case["case"]["number"], case["passed"]) for case in cases] == [
        (0, True), (1, False), (2, False),
    ]  # fmt: skip
    case = cases[0]
    assert case["session_id"] == f"{name}_case0"
    assert client.get(f"/api/sessions/{case['session_id']}").json()["status"] == "passed"
    (video,) = case["media"]
    run = runs / name / "case0" / "iter_1" / "base_seed_1"
    (run / "videos").mkdir()
    (run / "videos" / video["name"]).write_bytes(b"a video")
    assert client.get(video["url"]).content == b"a video"


def test_a_closed_gate_completes_a_benchmark(client: TestClient, runs: Path) -> None:
    made, folder = a_benchmark(
        runs, a_case(0), a_case(1), mode="staged", num_stages=2, gate_threshold=0.5
    )
    first, second = (stage[0] for stage in made.stages)
    there = f"/api/benchmarks/{made.benchmark_id}"
    assert client.get(there).json()["state"] == "incomplete"
    end_case(folder, first, "max_iterations", 0.1)
    save_model(folder / gate_folder(0) / "gate.json", decide(made, folder, 0))
    shown = client.get(there).json()
    assert shown["state"] == "completed"
    assert [stage["state"] for stage in shown["stages"]] == ["ended", "closed"]
    assert shown["gates"][0]["passed"] is False
    case = client.get(f"{there}/cases").json()[second]
    assert (case["state"], "below 0.5" in case["message"]) == ("not_run", True)


@pytest.mark.usefixtures("no_scheduler")
def test_benchmark_job_can_be_stopped_and_resumed(client: TestClient, runs: Path) -> None:
    body = {"csv": SUITE, "suite": "mine", "model": "builtin", "max_iterations": 1}
    answer = client.post("/api/benchmarks", json=body)
    assert answer.status_code == 201, answer.text
    name = answer.json()["benchmark_id"]
    there = f"/api/benchmarks/{name}"
    shown = client.get(there).json()
    assert (shown["state"], shown["measuring"], shown["suite"]) == ("queued", True, "mine")
    assert shown["benchmark"]["options"]["max_iterations"] == 1
    job = client.get(f"/api/scheduler/jobs/{answer.json()['job_id']}").json()
    assert [run["run_id"] for run in job["runs"]][-1] == f"{name}_report"
    case = client.get(f"{there}/cases").json()[1]
    assert (case["session_id"], case["state"]) == (f"{name}_case1", "waiting")
    assert client.delete(there).status_code == 409, "it is not stopped"
    assert client.post(f"{there}/stop").json()["runs"] == 3
    assert client.get(there).json()["state"] == "cancelled"
    assert client.post(f"{there}/stop").status_code == 409
    assert client.post(f"{there}/resume").json()["runs"] == 3
    assert client.get(there).json()["state"] == "queued"


@pytest.mark.usefixtures("no_scheduler")
def test_report_is_made_by_one_job_at_a_time(client: TestClient, runs: Path) -> None:
    name = ended(runs)
    asked = client.post(f"/api/benchmarks/{name}/report")
    assert asked.status_code == 202
    assert client.get(f"/api/benchmarks/{name}").json()["measuring"] is True
    assert client.post(f"/api/benchmarks/{name}/report").status_code == 409
    client.post(f"/api/scheduler/jobs/{asked.json()['job_id']}/cancel")
    again = client.post(f"/api/benchmarks/{name}/report").json()
    assert again["job_id"] != asked.json()["job_id"]


@pytest.mark.process
def test_report_job_measures_policies(
    client: TestClient, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = tmp_path / "runtime"
    cores.mkdir(mode=0o700)
    monkeypatch.setenv("P2P_CORE_LOCKS", str(cores))
    name = ended(runs)
    there = f"/api/benchmarks/{name}"
    job = client.post(f"{there}/report").json()["job_id"]
    wait_until(lambda: not client.get(there).json()["measuring"], 300)
    log = client.get(f"/api/scheduler/jobs/{job}/runs/{job}/log").json()["text"]
    shown = client.get(there).json()
    assert (shown["unmeasured"], shown["overall"]["true"]["total"]) == (0, 2), log
    assert (runs / name / "report.json").is_file()
    assert "report" in log


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"suite": "/etc/passwd"}, "suite"),
        ({"csv": "env_id,instruction\n"}, "category"),
        ({"csv": SUITE.replace("Reacher-v5", "Nothing-v0", 1)}, "line 2"),
        ({"csv": SUITE, "filter_envs": ["Ant-v5"]}, "Ant-v5"),
        ({"csv": SUITE, "model": "nobody:knows"}, "nobody"),
        ({"csv": SUITE, "nodes": ["elsewhere"]}, "nodes"),
        ({"csv": SUITE, "cores_per_run": 4000}, "cores_per_run"),
        ({"csv": SUITE, "max_iterations": 0}, "max_iterations"),
        ({"csv": SUITE, "total_timesteps": -1}, "total_timesteps"),
        ({"csv": SUITE, "num_configs": 99}, "configs"),
        ({"csv": SUITE, "gate_threshold": 2}, "gate_threshold"),
        ({"csv": SUITE, "unknown": 1}, "unknown"),
    ],
)
def test_bad_benchmark_request_names_field_and_starts_nothing(
    client: TestClient, runs: Path, change: dict[str, Any], named: str
) -> None:
    answer = client.post("/api/benchmarks", json={"model": "builtin", **change})
    assert answer.status_code == 422
    assert named in answer.json()["detail"]
    assert not list(runs.glob("bm_*"))
    assert client.get("/api/scheduler/jobs").json() == []


def test_benchmark_options_have_suites_with_prompts(client: TestClient) -> None:
    found = client.get("/api/benchmarks/options").json()
    suites = {suite["name"]: suite["cases"] for suite in found["suites"]}
    assert len(suites["mujoco_prompts"]) == 55
    assert suites["mujoco_prompts"][0].keys() >= {"env_id", "instruction", "difficulty"}
    assert found["nodes"] == ["local"]


def test_benchmark_goes_to_trash_with_its_cases(client: TestClient, runs: Path) -> None:
    name = ended(runs)
    there = f"/api/benchmarks/{name}"
    change = {"alias": "Tuesday", "starred": True, "tags": ["paper"]}
    assert client.patch(there, json=change).json() == {"id": name, **change}
    assert client.get("/api/benchmarks").json()[0]["alias"] == "Tuesday"
    client.app.app.state.p2p.index.refresh()  # type: ignore[attr-defined]
    assert len(client.get("/api/sessions").json()) == 3
    assert client.delete(f"/api/trash/{name}").status_code == 409, "not in the trash yet"
    assert client.post(f"{there}/restore").status_code == 409
    assert client.delete(there).json() == {"id": name, "status": "deleted"}
    assert client.get("/api/benchmarks").json() == client.get("/api/sessions").json() == []
    (item,) = client.get("/api/trash").json()
    assert (item["id"], item["kind"], item["title"]) == (name, "benchmark", "Tuesday")
    assert client.post(f"{there}/resume").status_code == 409
    assert client.post(f"{there}/restore").status_code == 200
    assert len(client.get("/api/sessions").json()) == 3
    client.delete(there)
    assert client.delete(f"/api/trash/{name}").json()["status"] == "removed"
    assert not (runs / name).exists()
    assert client.get(there).status_code == 404


@pytest.mark.usefixtures("no_scheduler")
def test_job_log_continues_at_an_offset(client: TestClient, runs: Path) -> None:
    made, _ = a_benchmark(runs, a_case(0))
    start(made, runs)
    name = made.benchmark_id
    there = f"/api/scheduler/jobs/{name}/runs/{name}_case0/log"
    assert client.get(there).json()["text"] == ""
    logs = Store(runs).folder / "logs"
    logs.mkdir()
    (logs / f"{name}_case0.1.txt").write_bytes(b"first\n" + b"x" * 300_000 + b"\nlast\n")
    end = client.get(there, params={"attempt": 1}).json()
    assert end["text"].endswith("\nlast\n")
    assert end["next_offset"] == 300_012
    assert end["offset"] > 0
    more = client.get(there, params={"attempt": 1, "offset": end["next_offset"]}).json()
    assert (more["text"], more["next_offset"]) == ("", 300_012)
    begin = client.get(there, params={"attempt": 1, "offset": 0}).json()
    assert begin["text"].startswith("first\n")
    (logs / f"{name}_case0.1.txt").write_bytes("é".encode()[:1])
    cut = client.get(there, params={"attempt": 1, "offset": 0}).json()
    assert (cut["text"], cut["next_offset"]) == ("", 0)
    (logs / f"{name}_case0.1.txt").write_bytes("é".encode())
    assert client.get(there, params={"attempt": 1, "offset": 0}).json()["text"] == "é"
    assert client.get(f"/api/scheduler/jobs/other/runs/{name}_case0/log").status_code == 404
    assert client.get(f"/api/scheduler/jobs/{name}/runs/other/log").status_code == 404


def test_benchmark_stream_sends_changes(client: TestClient, runs: Path) -> None:
    name = ended(runs)
    with client.stream("GET", f"/api/benchmarks/{name}/live") as stream:
        events = (line for line in stream.iter_lines() if line.startswith("event: "))
        assert next(events) == "event: benchmark"


def test_session_of_a_case_shows_failed_ground_truth(client: TestClient, runs: Path) -> None:
    made, folder = a_benchmark(runs, a_case(0, truth="reach_gap", threshold=0.001))
    end_case(folder, 0, "passed", 1.0, policy=IDLE, unchecked=("left",))
    session = f"/api/sessions/{made.benchmark_id}_case0"
    assert client.get(session).json()["ground_truth"] is None
    make_report(made, folder)
    shown = client.get(session).json()
    assert (shown["status"], shown["unchecked_words"]) == ("unverified", ["left"])
    assert shown["ground_truth"]["passed"] is False
    assert shown["ground_truth"]["truth"] == "reach_gap"
    (case,) = client.get(f"/api/benchmarks/{made.benchmark_id}/cases").json()
    assert (case["state"], case["passed"], case["true_pass"]) == ("unverified", None, False)


@pytest.mark.usefixtures("no_scheduler")
def test_plan_benchmark_starts_nothing(client: TestClient, runs: Path) -> None:
    asked = {"csv": SUITE, "model": "builtin", "max_iterations": 3, "max_parallel": 1}
    plan = client.post("/api/benchmarks/plan", json=asked).json()
    needed = plan["workload"]
    assert (needed["prompts"], needed["parallel"], needed["cost_usd"]) == (2, 1, [0, 0])
    assert needed["steps"][1] == 3 * needed["steps"][0] > 0
    assert plan["lines"][0] == "2 prompts on 1 environments, up to 3 iterations each"
    assert not list(runs.glob("bm_*"))


@pytest.mark.usefixtures("no_scheduler")
def test_plan_names_unreadable_price_file(client: TestClient, broken_prices: Path) -> None:
    asked = {"csv": SUITE, "model": "anthropic:claude-sonnet-4-5"}
    answer = client.post("/api/benchmarks/plan", json=asked)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["detail"].startswith(f"P2P_PRICES: the prices in {broken_prices} ")
