"""What `p2p serve --demo` shows: it is in the package, and its videos last as long as they ran."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NamedTuple

import av
import numpy as np
import pytest
from small_runs import signed_in

from p2p.api.app import RECORDING, demo_folders
from p2p.scheduler.controllers import JobOptions, one_run_job
from p2p.scheduler.job_files import read_output
from p2p.scheduler.records import RunSpec
from p2p.scheduler.store import Store
from p2p.training.video.playback import write_video

SMALL_ENOUGH = 8_000_000
SCRIPT = Path(__file__).parents[2] / "scripts" / "record_demo.py"


class Played(NamedTuple):
    """A video, as a browser sees it."""

    size: tuple[int, int]
    frames: int
    fps: Fraction
    seconds: Fraction
    """From its first picture to the end of its last."""
    even: bool
    """Whether all pictures are shown equally long."""


def played(video: Path | bytes) -> Played:
    with av.open(io.BytesIO(video) if isinstance(video, bytes) else str(video)) as file:
        stream = file.streams.video[0]
        times = [frame.pts * frame.time_base for frame in file.decode(stream)]
        assert stream.duration is not None
        steps = {late - early for early, late in pairwise(times)}
        fps = Fraction(stream.average_rate or 0)
        return Played(
            (stream.width, stream.height),
            len(times),
            fps,
            stream.duration * stream.time_base,
            len(steps) == 1,
        )


@pytest.fixture(scope="module")
def recorder() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("record_demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("record_demo", None)


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Path, Path]]:
    with demo_folders() as folders:
        yield folders


def test_demo_videos_last_as_long_as_their_frames(
    demo: tuple[Path, Path],
) -> None:
    videos = sorted(demo[0].rglob("*.mp4"))
    assert videos
    for path in videos:
        video = played(path)
        assert video.even, path
        assert video.size == (640, 480), path
        assert video.fps == 25, path
        assert abs(video.seconds - video.frames / video.fps) <= 1 / video.fps, path
        assert video.seconds >= 1, path


def test_demo_is_small_and_has_named_videos(demo: tuple[Path, Path]) -> None:
    assert RECORDING.stat().st_size < SMALL_ENOUGH
    for path in demo[0].rglob("result.json"):
        result = json.loads(path.read_text())
        for named in (*result["videos"], result["policy"]):
            assert (path.parent / named).exists(), (path, named)


def test_demo_names_no_folder_of_its_machine(
    demo: tuple[Path, Path],
) -> None:
    texts = [path for folder in demo for path in folder.rglob("*.json*")]
    assert texts
    for path in texts:
        assert not re.search(r'"/(tmp|root|home|work)/', path.read_text()), path


def test_demo_has_content_for_each_page(demo: tuple[Path, Path]) -> None:
    with signed_in(*demo) as client:
        sessions = client.get("/api/sessions?cases=false").json()
        assert {each["status"] for each in sessions} == {"passed"}
        # One passed at once; another only when its reward had been revised.
        assert min(each["iterations"] for each in sessions) == 1
        assert max(each["iterations"] for each in sessions) > 1
        assert client.get("/api/benchmarks").json()
        (run,) = client.get("/api/selfplay").json()
        shown = client.get(f"/api/selfplay/{run['run_id']}").json()
        assert len(shown["win_rates"][0]["history"]) > 1
        assert client.get(f"/api/selfplay/{run['run_id']}/games").json()


def test_demo_jobs_results_and_reports_agree(demo: tuple[Path, Path]) -> None:
    with signed_in(*demo) as client:
        sessions = client.get("/api/sessions?cases=false").json()
        jobs = client.get("/api/scheduler/jobs").json()
        runs = [
            (run, client.get(f"{place}/runs/{run['run_id']}/log").json()["text"])
            for place in (f"/api/scheduler/jobs/{job['job_id']}" for job in jobs)
            for run in client.get(place).json()["runs"]
        ]
    assert len({each["env_id"] for each in sessions}) >= 5, "behaviours of different environments"
    assert "session" in {job["kind"] for job in jobs}
    assert {job["state"] for job in jobs} == {"succeeded"}
    for run, printed in runs:
        assert (run["state"], run["node_id"]) == ("succeeded", "local")
        result_file = demo[0] / run["folder"] / "result.json"
        if result_file.exists():  # a session: others measure and report
            result = json.loads(result_file.read_text())
            assert (run["exit_code"] == 0) == (result["status"] == "passed"), run
            begin, end = (
                datetime.fromisoformat(run[f"{when}_at"]) for when in ("started", "ended")
            )
            assert result["seconds"] < (end - begin).total_seconds(), run
            assert f"{result['status']}: {result['message']}" in printed, run
    for path in demo[0].glob("session_*/result.json"):
        result = json.loads(path.read_text())
        assert result["confirmed_score"] >= 0.7, path
        assert result["unchecked_words"] == [], path
    (report,) = (json.loads(path.read_text()) for path in demo[0].glob("bm_*/report.json"))
    outcomes = {(case["outcome"], case["truth"]["passed"]) for case in report["cases"]}
    assert ("passed", True) in outcomes
    assert ("passed", False) not in outcomes, "the judge passed what the ground truth refutes"
    assert any(not met for _, met in outcomes), "a failure, with its ground truth"


@pytest.mark.parametrize("fps", [Fraction(10), Fraction(25)])
def test_recorder_shortens_video_at_same_speed(
    recorder: ModuleType, tmp_path: Path, fps: Fraction
) -> None:
    brightness = (np.arange(12 * int(fps)) % 256).astype(np.uint8)
    frames = np.broadcast_to(brightness[:, None, None, None], (len(brightness), 64, 64, 3)).copy()
    write_video(tmp_path / "long.mp4", frames, fps)
    video = played(recorder.small(tmp_path / "long.mp4"))
    assert video.even
    assert video.size == (64, 64)
    assert video.fps == fps
    assert float(video.seconds) == pytest.approx(recorder.SECONDS, abs=1 / float(video.fps))


def test_recorder_replaces_entries_of_same_kind(
    recorder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "demo.tar.xz"
    run = tmp_path / "outputs" / "nim"
    (run / "states").mkdir(parents=True)
    (run / "games").mkdir()
    (run / "config.json").write_text("{}")
    (run / "states" / "optimiser.safetensors").write_text("large")
    (run / "games" / "eval.jsonl").write_text("".join(f"{n}\n" for n in range(100)))
    recorder.write(archive, [("runs/session_a/x", 0, b"1"), ("outputs/old/x", 0, b"2")])
    monkeypatch.setattr(
        "sys.argv", ["record_demo", "--archive", str(archive), "--selfplay", str(run)]
    )
    recorder.main()
    with tarfile.open(archive) as packed:
        assert sorted(packed.getnames()) == [
            "outputs/nim/config.json", "outputs/nim/games/eval.jsonl", "runs/session_a/x",
        ]  # fmt: skip
        games = packed.extractfile("outputs/nim/games/eval.jsonl")
        assert games is not None
        assert games.read().split() == [str(n).encode() for n in range(40, 100)]


def test_recorder_keeps_session_with_its_job(
    recorder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, selfplay = tmp_path / "demo.tar.xz", tmp_path / "outputs" / "nim"
    selfplay.mkdir(parents=True)

    def jobs_after(option: str, folder: Path) -> list[str]:
        arguments = ["record_demo", "--archive", str(archive), option, str(folder)]
        monkeypatch.setattr("sys.argv", arguments)
        recorder.main()
        with tarfile.open(archive) as packed, TemporaryDirectory() as unpacked:
            packed.extractall(unpacked, filter="data")
            with closing(Store(Path(unpacked) / "runs")) as store:
                assert store.jobs(unended=True) == []
                runs = store.runs()
                logs = (read_output(store, run, run.attempt).decode() for run in runs)
                assert {*logs} == {f"runs/{run.run_id}" for run in runs}
                return [job.job_id for job in store.jobs() if job.state == "succeeded"]

    for name in ("session_a", "session_b"):
        runs_dir = tmp_path / name
        (runs_dir / name).mkdir(parents=True)
        (runs_dir / name / "intent.json").write_text("{}")
        launch = runs_dir / "scheduler" / "launches" / f"{name}.1"
        launch.mkdir(parents=True)
        (launch / "log.txt").write_text(f"{runs_dir}/{name}")
        run = RunSpec(run_id=name, folder=name, command=("true",))
        with closing(Store(runs_dir)) as store:
            store.submit(one_run_job("session", run, JobOptions(title=name)))
            store.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = 1.0")
        assert jobs_after("--session", runs_dir / name) == [name]
    assert jobs_after("--selfplay", selfplay) == ["session_b"]
