"""Every door by which a folder of somebody else comes in: docs/safety.md lists them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import requests

from foreign_folder import (
    ESCAPE,
    MARKUP,
    SECRET,
    ForeignFolder,
    make_foreign_folder,
    replace_by_link,
)
from p2p import files, settings
from p2p.config import LoopConfig
from p2p.contracts import SessionConfig
from p2p.records.iteration_record import IterationRecord
from p2p.scheduler.records import JobSpec, RunSpec
from p2p.scheduler.store import Store

EARLIER_SESSION = Path(__file__).parent / "session" / "earlier_versions" / "59044ce.tar.xz"
DEADLINE_S = 120
VARIABLES = {"OPENAI_API_KEY": SECRET, "PYTHONDONTWRITEBYTECODE": "1"}
DOORS = {
    "p2p show": ["show", "session_shared"],
    "p2p sessions": ["sessions"],
    "p2p resume": ["resume", "session_shared"],
    "p2p stop": ["stop", "session_shared"],
    "p2p steer": ["steer", "session_shared", "--remark", "faster"],
    "p2p analyze": ["analyze", "session_shared"],
    "p2p label": ["label", "session_shared", "--csv", "../labels.csv"],
    "p2p attack": ["attack", "session_shared"],
    "p2p train --resume": ["train", "--resume", "session_shared/iter_1"],
    "p2p check": ["check", "session_shared"],
    "p2p evaluate": ["evaluate", "session_shared", "--episodes", "1"],
    "p2p play": ["play", "session_shared", "--output", "../play.mp4", "--size", "64"],
    "p2p export": ["export", "session_shared", "--to", "../exported"],
    "p2p benchmark report": ["benchmark", "report", "last"],
    "p2p benchmark --csv": ["benchmark", "--csv", "suite.csv", "--dry-run"],
    "p2p nodes": ["nodes", "list"],
    "p2p jobs": ["jobs", "list"],
    "p2p scheduler run": ["scheduler", "run", "--until-idle"],
    "unstable watch": ["selfplay", "--once"],
    "unstable eval": ["selfplay", "--games", "1"],
    "unstable play": ["selfplay"],
    "unstable resume": ["selfplay"],
}  # fmt: skip
"""As docs/safety.md names them, and the rest of a command line that goes through."""
QUICK = ("p2p show", "p2p export", "p2p scheduler run", "unstable resume")


@pytest.fixture
def folder(trained_run: IterationRecord, tmp_path: Path) -> ForeignFolder:
    return make_foreign_folder(trained_run.path, tmp_path)


def go_through(door: str, folder: ForeignFolder) -> subprocess.CompletedProcess[str]:
    """The command in the folder itself, where Python would find its modules."""
    program, *_ = door.split()
    words = [*door.split()[1:], *DOORS[door]] if program == "unstable" else DOORS[door]
    runs = [] if program == "unstable" else ["--runs-dir", "."]
    for name in folder.path.glob(f"{program}.py"):
        name.unlink()  # `python -m` takes it for the program
    answer = subprocess.run(
        [sys.executable, "-m", f"{program}.cli", *words, *runs],
        cwd=folder.path,
        env={**os.environ, **VARIABLES},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    said = answer.stdout + answer.stderr
    assert "Traceback" not in said, said
    assert "No such option" not in said, said
    assert SECRET not in said
    assert ESCAPE not in said
    return answer


@pytest.mark.parametrize(
    "door", [pytest.param(d, marks=() if d in QUICK else pytest.mark.slow) for d in DOORS]
)
@pytest.mark.parametrize("linked", [False, True], ids=["files", "links"])
def test_no_code_runs_and_no_secret_leaves(
    folder: ForeignFolder, door: str, linked: bool, tmp_path: Path
) -> None:
    store = Store(folder.path)
    store.submit(hostile_job(folder))
    store.connection.execute("PRAGMA application_id = 7")  # as one that was made elsewhere
    store.close()
    if linked:
        folder.add_links()
    go_through(door, folder)
    assert folder.is_harmless()
    for path in (*tmp_path.glob("exported/**/*"), *tmp_path.glob("*.*")):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_session_of_others_is_resumed_in_the_sandbox(tmp_path: Path) -> None:
    folder = ForeignFolder(tmp_path / "shared", tmp_path / "outside")
    folder.outside.mkdir()
    folder.secret.write_text(SECRET)
    with tarfile.open(EARLIER_SESSION) as archive:
        archive.extractall(folder.session, filter="data")
    shutil.rmtree(folder.run / "base_seed_1")  # what it had trained, with a reward that is honest
    stored = json.loads((folder.session / "session.json").read_text())
    stored["loop"]["unsafe_local"] = True
    (folder.session / "session.json").write_text(json.dumps(stored))
    attempt = (
        f"try:\n    open({str(folder.canary)!r}, 'w').close()\nexcept OSError:\n    pass\n\n\n"
    )
    for record, source in (("iter_1/reward", "iter_1/reward_fn.py"), ("judge", "judge_fn.py")):
        path = folder.session / f"{record}.json"
        written = json.loads(path.read_text())
        written["code"] = written["code"].replace("\ndef ", f"\n{attempt}def ", 1)
        assert attempt in written["code"]
        path.write_text(json.dumps(written))
        (folder.session / source).write_text(written["code"])
    folder.add_modules(folder.path)
    folder.add_modules(folder.session)
    go_through("p2p resume", folder)
    assert attempt in (folder.run / "base_seed_1" / "reward_fn.py").read_text()
    assert (folder.run / "base_seed_1" / "summary.json").exists()
    assert (folder.run / "judgment.json").exists()
    assert sorted(path.name for path in folder.outside.iterdir()) == ["secret"]


def hostile_job(folder: ForeignFolder) -> JobSpec:
    run = RunSpec(run_id="evil", folder="evil", command=("touch", str(folder.canary)))
    return JobSpec(job_id="evil", kind="command", runs=(run,), created_at="2026-01-01T00:00:00Z")


def test_every_door_is_in_the_documents() -> None:
    text = (Path(__file__).parent.parent / "docs" / "safety.md").read_text()
    assert not [door for door in DOORS if f"`{door}" not in text]


def test_the_jobs_of_a_folder_run_where_it_was_made(folder: ForeignFolder) -> None:
    store = Store(folder.path)
    store.check_trusted()
    store.close()
    copied = folder.path.rename(folder.path.parent / "elsewhere")
    answer = go_through("p2p scheduler run", ForeignFolder(copied, folder.outside))
    assert answer.returncode == 1
    assert "--trust" in answer.stderr


@pytest.mark.process
@pytest.mark.parametrize("linked", [False, True], ids=["files", "links"])
def test_a_served_folder_gives_no_secret_and_runs_nothing(
    folder: ForeignFolder, linked: bool
) -> None:
    upstream = folder.path / "session_upstream"
    upstream.mkdir()
    history = {"prompt": ESCAPE, "status": "passed", "best_score": 1e999, "env_id": MARKUP}
    (upstream / "loop_history.json").write_text(json.dumps(history))
    replace_by_link(upstream / "iter_1", folder.outside)
    if linked:
        folder.add_links()
        replace_by_link(upstream / "loop_history.json", folder.secret)
        replace_by_link(folder.path / "session_linked", folder.outside)
    command = [sys.executable, "-m", "p2p.cli", "serve", "--port", "0", "--runs-dir", "."]
    with subprocess.Popen(
        command,
        cwd=folder.path,
        env={
            **os.environ,
            "OPENAI_API_KEY": SECRET,
            "P2P_TOKEN": "t",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            printed = [server.stdout.readline()]
            while printed[-1] and not printed[-1].startswith("http://"):
                printed.append(server.stdout.readline())
            assert printed[-1], printed
            for method, path, body in requests_to(folder):
                answer = requests.request(
                    method,
                    printed[-1].partition("/?")[0] + path,
                    json=body,
                    headers={"Authorization": "Bearer t"},
                    timeout=DEADLINE_S,
                )
                assert answer.status_code != 401
                assert answer.status_code < 500, (path, answer.text)
                assert SECRET not in answer.text, path
        finally:
            server.send_signal(signal.SIGINT)
            said, _ = server.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in said, said
    assert SECRET not in said
    assert folder.is_harmless()


def requests_to(folder: ForeignFolder) -> list[tuple[str, str, object]]:
    """Everything that is read from a runs folder, and what would do something with it."""
    from p2p.api.app import create_api

    names = {
        "iteration_id": "iter_1", "iter_num": "1", "run_id": "selfplay", "name": "x.mp4",
        "step": "1", "seq": "1", "video": "x", "job_id": "evil", "game_id": "eval-1",
        "benchmark_id": "bm_0",
    }  # fmt: skip
    read = [
        ("GET", path.format(**names, session_id=session), None)
        for path, operations in create_api().openapi()["paths"].items()
        if "get" in operations and not path.endswith("/live")
        for session in ("session_shared", "session_upstream", "session_linked")
    ]
    videos = "/api/sessions/session_shared/iterations/1/runs/iter_1/videos"
    read += [("GET", f"{videos}/{video.name}", None) for video in (folder.run / "videos").iterdir()]
    bodies = {
        "resume": {"model": "builtin"},
        "steer": {"remark": ESCAPE, "reward_code": "import os"},
        "stop": None,
        "labels": {"video": "../x", "score": 1, "annotator": ESCAPE},
        "analyze": {"model": "builtin"},
        "check-reward": {"reward_code": "import os"},
    }
    return [
        *read,
        *(
            ("POST", f"/api/sessions/{session}/{what}", body)
            for session in ("session_shared", "session_upstream")
            for what, body in bodies.items()
        ),
        ("POST", "/api/selfplay", {"model": "../selfplay"}),
        ("POST", "/api/selfplay", {"games": ["../selfplay"]}),
        ("POST", "/api/selfplay", {"opponents": ["own_part:Evil"]}),
        ("POST", "/api/selfplay/selfplay/stop", None),
        ("POST", "/api/scheduler/nodes", {"node_id": "-oProxyCommand=x", "backend": "ssh"}),
    ]


def test_an_exported_model_card_shows_foreign_text_as_text(folder: ForeignFolder) -> None:
    assert go_through("p2p export", folder).returncode == 0
    card = (folder.path.parent / "exported" / "README.md").read_text()
    assert "\x1b" not in card
    assert "<script" not in card
    assert "javascript:" not in card
    assert not re.search(r"(?<!\\)\[[lp](?<!\\)\]", card)


def test_no_folder_goes_without_a_sandbox(tmp_path: Path) -> None:
    config = SessionConfig(
        session_id="s", prompt="run", loop=LoopConfig(), created_at="2026-01-01T00:00:00Z",
        version="0",
    )  # fmt: skip
    stored = json.loads(config.model_dump_json())
    stored["loop"]["unsafe_local"] = True
    assert SessionConfig.model_validate_json(json.dumps(stored)) == config
    assert "unsafe_local" not in LoopConfig.model_fields


@pytest.mark.parametrize("names_data", [True, False])
def test_a_folders_env_file_gives_keys_and_models_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_data: bool
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "P2P_ENV_PATH", "LLM_MODEL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".env").write_text(
        "OPENAI_API_KEY=of-this-folder\nLLM_MODEL=${HOME}\nOPENAI_BASE_URL=http://there\n"
        "P2P_ENV_PATH=/there\nP2P_CACHE_DIR=/there\n"
    )
    inside = tmp_path / "below"
    inside.mkdir()
    (inside / ".env").write_text((tmp_path / ".env").read_text())
    if names_data:
        (tmp_path / "session.json").write_text("{}")
    monkeypatch.chdir(inside)
    expected = {} if names_data else {"OPENAI_API_KEY": "of-this-folder", "LLM_MODEL": "${HOME}"}
    assert settings.file_variables() == expected


def test_the_users_own_env_files_say_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "prompt2policy").mkdir(parents=True)
    settings.home_env_file().write_text("OPENAI_BASE_URL=http://home\nVLLM_HOST=home\n")
    (tmp_path / "named").write_text("OPENAI_BASE_URL=http://named\n")
    (tmp_path / ".env").write_text("VLLM_HOST=there\n")
    assert settings.file_variables()["OPENAI_BASE_URL"] == "http://home"
    monkeypatch.setenv("P2P_ENV_FILE", "named")
    assert settings.file_variables() == {"OPENAI_BASE_URL": "http://named", "VLLM_HOST": "home"}


def test_a_link_to_where_the_user_keeps_sessions_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk" / "session_1").mkdir(parents=True)
    files.write_json(tmp_path / "disk" / "session_1" / "session.json", {"a": 1})
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    there = tmp_path / "runs" / "session_1"
    assert files.load_object(there / "session.json") == {"a": 1}
    (there / "llm").symlink_to(tmp_path / "disk")
    files.write_json(tmp_path / "disk" / "private.json", {"b": 1})
    with pytest.raises(files.UnreadableError, match="link"):
        files.load_object(there / "llm" / "private.json")
    with pytest.raises(OSError, match="link"):
        files.write_text(there / "llm" / "private.json", "written")
    (there / "events.jsonl").symlink_to(tmp_path / "disk" / "private.json")
    with pytest.raises(OSError, match="link"):
        files.append_line(there / "events.jsonl", b"{}")
    assert files.load_object(tmp_path / "disk" / "private.json") == {"b": 1}


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "status.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as stream:
            stream.truncate(1 << 40)
    with pytest.raises(files.UnreadableError):
        files.load_text(path)
    assert files.read_from(path)[0] == []
    assert list(files.lines_backward(path)) == []
