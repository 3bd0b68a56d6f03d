"""`p2p jobs`, `p2p nodes` and `p2p scheduler`."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_runner import Cli

from p2p.commands.job_progress import JobProgress
from p2p.config import TrainConfig
from p2p.scheduler.records import JobSpec, RunSpec
from p2p.scheduler.service import hold_scheduler_lock, is_running
from p2p.scheduler.store import Store

HOSTILE = [
    "-oProxyCommand=touch x",
    "; rm -rf ~",
    "..",
    "a/../../b",
    "$(reboot)",
    "é",
    "x" * 10_000,
]


@pytest.fixture(autouse=True)
def _cores_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2P_CORE_LOCKS", str(tmp_path / "locks"))
    for name in ("P2P_RUNS_DIR", "RUNS_DIR", "LLM_MODEL", "VLM_MODEL"):
        monkeypatch.delenv(name, raising=False)


def test_this_machine_is_a_node_without_any_set_up(p2p: Cli) -> None:
    (node,) = p2p("nodes", "list", "--json").json
    assert (node["node_id"], node["backend"], node["runs"]) == ("local", "local", 0)
    assert node["cores"] >= 1
    (found,) = p2p("nodes", "check", "--json").json
    assert found["ok"]


def test_a_node_comes_changes_and_goes(p2p: Cli) -> None:
    new = ("nodes", "add", "gpu1", "--backend", "ssh", "--host", "10.0.0.7", "--user", "me")
    assert p2p(*new, "--cores", 8, "--base-dir", "/srv/p2p").status == 0
    again = p2p(*new, "--cores", 9, "--base-dir", "/srv/p2p")
    assert (again.status, "--replace" in again.error) == (2, True)
    assert p2p(*new, "--cores", 9, "--base-dir", "/srv/p2p", "--replace").status == 0
    rows = {row["node_id"]: row for row in p2p("nodes", "list", "--json").json}
    assert rows["gpu1"]["cores"] == 9
    assert rows["gpu1"]["where"] == "me@10.0.0.7:22"
    assert p2p("nodes", "remove", "gpu1").status == 0
    gone = p2p("nodes", "remove", "gpu1")
    assert (gone.status, gone.error) == (
        2,
        "error: NODE: there is no node gpu1; see p2p nodes list",
    )


@pytest.mark.parametrize("bad", HOSTILE)
def test_hostile_names_are_refused_and_the_flag_is_named(p2p: Cli, bad: str) -> None:
    for flag in ("--host", "--user", "--base-dir", "--python", "--key-file", "--partition"):
        found = p2p("nodes", "add", "n", "--backend", "ssh", "--cores", 1, f"{flag}={bad}")
        assert found.status == 2
        assert f"{flag}: " in found.error
        assert len(found.error) < 1000
    found = p2p("nodes", "add", "--cores", "1", "--", bad)
    assert (found.status, "NODE: " in found.error) == (2, True)
    for flag in ("--name", "--node"):
        found = p2p("jobs", "submit", f"{flag}={bad}", "--", "ls")
        assert found.status == 2
        assert f"{flag}: " in found.error
        assert len(found.error) < 1000
    for command in ("show", "cancel", "retry", "logs"):
        found = p2p("jobs", command, "--", bad)
        assert (found.status, "JOB: " in found.error) == (2, True)
    assert [row["node_id"] for row in p2p("nodes", "list", "--json").json] == ["local"]
    assert p2p("jobs", "list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("submit",), "nothing is given"),
        (("submit", "run fast", "--reward", "hopper_stand"), "PROMPT and --reward"),
        (("submit", "run fast", "--cores", 4000), "--cores 4000"),
        (("submit", "run fast", "--env", "Nope-v1"), "Nope-v1"),
        (("submit", "run fast", "--set", "nope=1"), "--set nope=1"),
        (("submit", "--reward", "nothere.py"), "nothere.py"),
        (("submit", "--reward", "hopper_stand", "--model", "builtin"), "--model: not with"),
        (("submit", "--selfplay", "nothere.toml"), "--selfplay"),
        (("submit", "--priority", 500, "--", "ls"), "--priority"),
        (("show", "last"), "no jobs"),
        (("logs", "nothere"), "JOB: no jobs in"),
    ],
)
def test_mistakes_are_named_and_leave_nothing_behind(
    p2p: Cli, tmp_path: Path, arguments: tuple[object, ...], told: str
) -> None:
    found = p2p("jobs", *arguments)
    assert found.status == 2
    assert told in found.error
    assert {path.name for path in tmp_path.glob("runs/*")} <= {"scheduler"}
    assert p2p("jobs", "list", "--json").json == []


@pytest.mark.process
def test_a_command_is_submitted_watched_read_and_tried_again(p2p: Cli, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; n = Path('n'); n.open('a').write('x'); "
    code += "print('try', len(n.read_text())); sys.exit(len(n.read_text()) < 2)"
    first = p2p("jobs", "submit", "--name", "j", "--watch", "--", "{python}", "-c", code)
    assert first.status == 1
    assert "j: failed on local" in first.err
    assert p2p("jobs", "logs", "j").out == "try 1\n"
    shown = p2p("jobs", "show", "last", "--json").json
    assert (shown["status"], shown["runs"][0]["exit_code"]) == ("failed", 1)
    assert p2p("jobs", "retry", "j", "--json").json["runs"] == 1
    assert p2p("jobs", "show", "j", "--follow").status == 0
    assert p2p("jobs", "logs", "j").out == "try 2\n"
    assert p2p("jobs", "logs", "j", "--attempt", 1).out == "try 1\n"
    (job,) = p2p("jobs", "list", "--json").json
    assert (job["state"], job["counts"]) == ("succeeded", {"succeeded": 1})
    over = p2p("jobs", "retry", "j")
    assert (over.status, "nothing that failed" in over.error) == (1, True)
    assert (tmp_path / "runs" / "j" / "n").read_text() == "xx"


@pytest.mark.process
def test_a_job_outlives_who_watches_it_and_is_cancelled(
    p2p: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    p2p("jobs", "submit", "--name", "j", "--", "sleep", "300")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(JobProgress, "update", interrupt)
        left = p2p("jobs", "show", "j", "--follow")
    assert left.status == 130
    assert "the job continues; cancel it with: p2p jobs cancel j" in left.err
    done = p2p("jobs", "cancel", "last", "--wait", "--json")
    assert done.json == {"job_id": "j", "runs": 1, "state": "cancelled"}
    again = p2p("jobs", "cancel", "j")
    assert (again.status, "has ended" in again.error) == (1, True)


@pytest.mark.process
def test_a_training_is_submitted(p2p: Cli, tmp_path: Path, small_config: TrainConfig) -> None:
    config = tmp_path / "small.json"
    config.write_text(small_config.with_updates(env_id="HalfCheetah-v5", num_evals=1).to_json())
    done = p2p(
        "jobs", "submit", "--reward", "halfcheetah_run_forward", "--config", config,
        "--no-videos", "--log", "tensorboard", "--watch", "--json",
    )  # fmt: skip
    assert done.status == 0, done.err
    folder = tmp_path / "runs" / done.json["runs"][0]["folder"]
    assert (folder / "summary.json").is_file()


@pytest.mark.process
def test_a_session_that_is_stopped_before_it_begins_never_does(p2p: Cli, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with hold_scheduler_lock(runs):  # which does nothing
        asked = p2p(
            "jobs", "submit", "run forward", "--env", "HalfCheetah-v5", "--model", "builtin",
            "--json",
        )  # fmt: skip
        assert asked.status == 0, asked.err
        session = asked.json["job_id"]
        assert (runs / session / "session.json").is_file()
        assert p2p("stop", session).status == 0
        run = Store(runs).run(session)
        assert run is not None
        assert (run.state, run.cancel_requested) == ("cancelled", True)
    assert p2p("scheduler", "run", "--until-idle", "--json").json == {"jobs_left": 0}
    assert not (runs / session / "iter_1").exists()


@pytest.mark.process
def test_a_case_of_a_benchmark_is_named_by_its_number(p2p: Cli, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    cases = tuple(
        RunSpec(run_id=f"bm_1_case{i}", folder=f"bm_1/case{i}", command=("true",)) for i in (0, 1)
    )
    with hold_scheduler_lock(runs):  # which does nothing
        job = JobSpec(job_id="bm_1", kind="benchmark", runs=cases, created_at=datetime.now(UTC))
        Store(runs).submit(job)
        assert p2p("jobs", "cancel", "bm_1", "case1").status == 0
        states = {run.run_id: run.state for run in Store(runs).runs("bm_1")}
        assert states == {"bm_1_case0": "pending", "bm_1_case1": "cancelled"}
        unknown = p2p("jobs", "cancel", "bm_1", "case7")
        assert (unknown.status, "RUN: bm_1 has no run case7" in unknown.error) == (2, True)


@pytest.mark.process
def test_a_second_scheduler_is_told_so(p2p: Cli, tmp_path: Path) -> None:
    with hold_scheduler_lock(tmp_path / "runs"):
        assert is_running(tmp_path / "runs")
        found = p2p("scheduler", "run")
        assert (found.status, "works on" in found.error) == (9, True)


def test_hints_find_the_runs_that_they_speak_of(p2p: Cli, tmp_path: Path) -> None:
    elsewhere = tmp_path / "my runs"
    where = f"--runs-dir {shlex.quote(str(elsewhere))}"
    for command, hint in (
        (("jobs", "list"), f'p2p jobs submit "run forward fast" {where}'),
        (("nodes", "add", "other", "--cores", "1"), f"p2p nodes check other {where}"),
    ):
        printed = p2p(*command, "--runs-dir", elsewhere)
        assert hint in printed.out + printed.err
    assert "--runs-dir" not in p2p("jobs", "list").out
