"""A run is resumed, also one that an older version wrote; or it is refused, and stays as it was."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from small_run import learned_steps, new_run

from unstable.cli import main
from unstable.run import RunFolder
from unstable.run.progress import fill_defaults
from unstable.run.start import start

FORMATS = Path(__file__).parent / "formats"
"""Runs that were killed in training, as versions wrote them: RUN and MODEL stand for folders."""


@pytest.fixture(params=sorted(path.name for path in FORMATS.glob("*.tar.xz")))
def earlier(request: pytest.FixtureRequest, model: str, tmp_path: Path) -> Path:
    with tarfile.open(FORMATS / request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    run = tmp_path / "run"
    for path in run.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("RUN", str(run)).replace("MODEL", model), encoding="utf-8")
    return run


@pytest.fixture(scope="module")
def finished(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, folder = new_run(
        tmp_path_factory.mktemp("runs") / "run", model, updates=2, eval_games=2
    )
    assert start(config, folder, model, lambda _: None).step == 2
    return folder.path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Two updates that are done, and more in its files than its last state has."""
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    with (copy / "metrics.jsonl").open("a") as stream:
        stream.write('{"time": 1, "step": 3, "learner/step": 3.0}\n')
    return copy


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def resume(run: Path, *options: str) -> int:
    try:
        main(["resume", str(run), *options])
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_a_run_of_an_older_version_is_resumed(earlier: Path) -> None:
    assert resume(earlier) == 0
    assert learned_steps(earlier) == [1, 2, 3]
    status = json.loads((earlier / "status.json").read_text())
    assert (status["status"], status["step"]) == ("completed", 3)
    info = json.loads((earlier / "interface.json").read_text())
    assert [one["ckpt_uid"] for one in info["evaluation"]] == ["ckpt--1", "ckpt-2", "ckpt-3"]


def test_fill_defaults_completes_old_states() -> None:
    written = {"old": 1, "counts": {"games": 3}, "list": [1]}
    defaults = {"old": 0, "new": {}, "counts": {"games": 0, "failed": 0}, "list": []}
    completed = {"old": 1, "new": {}, "counts": {"games": 3, "failed": 0}, "list": [1]}
    assert fill_defaults(written, defaults) == completed


@pytest.mark.parametrize("mode", ["turns", "overlap"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tracker.json", '{"windows": 3}'),
        ("buffer.json", "[]"),
        ("pool.json", '{"models": [["ckpt-1"]]}'),
        ("collector.json", "{"),
        ("learner/learner.safetensors", "nothing"),
    ],
)
def test_a_refused_resume_changes_nothing(
    run: Path, capsys: pytest.CaptureFixture[str], mode: str, name: str, content: str
) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"mode": mode}))
    (run / "states" / "step-2" / name).write_text(content)
    before = contents(run)
    assert resume(run, "--updates", "5") == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "step-2" in line] == said[-1:]
    assert said[-1].startswith("error: ")
    assert contents(run) == before


def test_a_run_is_never_resumed_to_fewer_updates(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run)
    assert resume(run, "--updates", "1") == 2
    assert "has made 2" in capsys.readouterr().err
    assert contents(run) == before


def test_resume_refuses_a_run_in_use(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    with RunFolder(run).hold_lock():
        assert resume(run, "--updates", "9") == 2
    assert "another process" in capsys.readouterr().err
    assert contents(run) == before


def test_resume_sets_top_p_of_old_runs_to_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = json.loads((run / "config.json").read_text())
    asked["sampling"]["top_p"] = 0.95
    (run / "config.json").write_text(json.dumps(asked))
    assert resume(run, "--updates", "3") == 0
    assert "top_p: 1, not 0.95" in capsys.readouterr().err
    assert RunFolder(run).config().sampling.top_p == 1


def test_more_updates_are_kept_with_the_run(run: Path) -> None:
    assert resume(run, "--updates", "3") == 0
    assert learned_steps(run) == [1, 2, 3]
    assert RunFolder(run).config().updates == 3


@pytest.mark.parametrize("mode", ["turns", "overlap"])
def test_termination_is_one_line(tmp_path: Path, model: str, mode: str) -> None:
    _, folder = new_run(
        tmp_path / "run", model, updates=1000, mode=mode, eval_games=0, state_seconds=0
    )
    command = [sys.executable, "-m", "unstable.cli", "resume", str(folder.path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        state = folder.path / "states" / "step-2"
        wait_until(lambda: state.exists() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    first, plan, *rest = err.splitlines()
    assert first == f"run: {folder.path}"
    assert "1000 updates" in plan
    assert rest == [f"stopped; resume with: unstable resume {folder.path}"]
    status: dict[str, Any] = json.loads((folder.path / "status.json").read_text())
    assert (status["status"], status["message"]) == ("cancelled", "interrupted")
    assert status["step"] >= 2
