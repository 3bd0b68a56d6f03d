"""`p2p evaluate`, `p2p play`, `p2p export`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import av
import pytest
from cli_runner import Cli, start
from PIL import ImageGrab

from p2p.commands.catalogue import reward_or_session
from p2p.commands.runs import open_run
from p2p.contracts import SessionResult
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.loop_files import BestRun
from session_folder import SessionFolder, judgment

EARLY = 512
"""The step of `trained_run` that is judged in `session`; training itself selects the last one."""


@pytest.fixture
def session(tmp_path: Path, p2p: Cli, trained_run: IterationRecord) -> SessionRecord:
    """A session whose best iteration is the first, by its second run and an early checkpoint."""
    record = SessionFolder.create(tmp_path / "runs").record
    for number, score, run_ids in ((1, 0.9, ("base_seed_1", "base_seed_2")), (2, 0.4, ("b",))):
        iteration = record.iteration(number)
        for run_id in run_ids:
            shutil.copytree(trained_run.path, iteration.path / run_id)
        iteration.best_run.save(BestRun(run_id=run_ids[-1], step=EARLY, score=score))
        iteration.save_judgment(judgment(score))
    result = SessionResult(
        status="passed", best_iteration=1, run_id="base_seed_2", step=EARLY, score=0.9
    )
    record.result.save(result)
    record.set_status("passed")
    return record


@pytest.mark.parametrize(
    "text",
    ["last", "best", "00000000", "session_2026", "runs/session_20260101_000000_00000000",
     "runs/session_20260101_000000_00000000/iter_1"],
)  # fmt: skip
def test_of_a_session_it_is_the_best_run_and_its_judged_checkpoint(
    session: SessionRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    run, config, step = open_run(text)
    assert run.path.resolve() == (session.path / "iter_1" / "base_seed_2").resolve()
    assert (config.env_id, step) == ("HalfCheetah-v5", EARLY)


def test_play_evaluate_export_and_check_take_a_session(
    p2p: Cli, session: SessionRecord, tmp_path: Path
) -> None:
    run = "runs/session_20260101_000000_00000000/iter_1/base_seed_2"
    evaluated = p2p("evaluate", "best", "--episodes", 1, "--json")
    assert evaluated.json["global_step"] == EARLY
    assert f"iteration 1, score 0.90: {run}" in evaluated.err
    assert "--window: there is no display" in p2p("play", "last", "--window").error
    assert p2p("export", "last", "--to", "it", "--json").status == 0
    early = session.path / "iter_1/base_seed_2/checkpoints" / f"step_{EARLY}"
    weights = "policy.safetensors"
    assert (tmp_path / "it" / weights).read_bytes() == (early / weights).read_bytes()
    reward, config = reward_or_session("last", None)
    assert (Path(reward.name).parent, reward.env_id) == (tmp_path / run, "HalfCheetah-v5")
    assert config.side_info  # as the run had it: it is on unless it was turned off


def test_a_session_without_a_run_says_so(p2p: Cli, tmp_path: Path) -> None:
    SessionFolder.create(tmp_path / "runs")
    for command in ("play", "evaluate", "check"):
        assert "has trained nothing yet" in p2p(command, "last").error


def test_equal_seeds_give_equal_episodes_and_blocks_differ(
    p2p: Cli, trained_run: IterationRecord
) -> None:
    def returns(*flags: object) -> list[float]:
        found: list[float] = p2p("evaluate", trained_run.path, *flags, "--json").json["all_returns"]
        return found

    five = returns("--episodes", 5, "--seed", 3)
    assert len(five) == 5
    assert five == returns("--episodes", 5, "--seed", 3)
    assert five == returns("--episodes", 18, "--seed", 3)[:5]
    assert not set(five) & set(returns("--episodes", 5, "--seed", 4))


def test_block_zero_is_what_training_measured(p2p: Cli, trained_run: IterationRecord) -> None:
    _, evaluations = trained_run.parse_scalars()
    for line in evaluations:
        step, measured = line["global_step"], line["all_returns"]
        flags = ("--seed", 0, "--episodes", len(measured), "--checkpoint", step, "--json")
        assert p2p("evaluate", trained_run.path, *flags).json["all_returns"] == measured


def test_evaluate_for_people(p2p: Cli, trained_run: IterationRecord) -> None:
    outcome = p2p("evaluate", trained_run.path, "--episodes", 3)
    assert outcome.status == 0
    assert "over 3 episodes" in outcome.out
    assert "speed" in outcome.out


def test_play_writes_a_video_that_browsers_play(
    p2p: Cli, tmp_path: Path, trained_run: IterationRecord
) -> None:
    outcome = p2p("play", trained_run.path, "-o", "new/watch.mp4", "--size", "96", "--json")
    assert outcome.json["video"] == str(tmp_path / "new" / "watch.mp4")
    with av.open(outcome.json["video"]) as video:
        stream = video.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 128, 96)
        frames = [frame.to_ndarray() for frame in video.decode(video=0)]
    assert len(frames) == outcome.json["frames"] == 50
    assert (frames[0] != frames[-1]).any()


@pytest.mark.skipif(not shutil.which("Xvfb"), reason="needs the package xvfb")
def test_play_opens_a_window_where_there_is_a_display(
    tmp_path: Path, trained_run: IterationRecord
) -> None:
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", "1", "-screen", "0", "640x480x24"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    display = f":{server.stdout.readline().strip()}"
    player = start("play", trained_run.path, "--json", cwd=tmp_path, DISPLAY=display)
    try:
        deadline = time.monotonic() + 120
        while not any(high for _, high in ImageGrab.grab(xdisplay=display).getextrema()):
            assert player.poll() is None, player.communicate()
            assert time.monotonic() < deadline, "the window stayed black"
            time.sleep(0.2)
        player.send_signal(signal.SIGINT)
        out, err = player.communicate(timeout=30)
    finally:
        for process in (player, server):
            process.kill()
            process.wait()
    assert player.returncode == 0, err
    assert json.loads(out)["video"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_display_that_cannot_be_used_gives_a_video(
    p2p: Cli, tmp_path: Path, trained_run: IterationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":4711")
    outcome = p2p("play", trained_run.path, "--size", "64")
    assert outcome.status == 0, outcome.err
    assert "':4711' cannot be used" in outcome.err
    assert (tmp_path / "play.mp4").exists()
    assert ":4711" in p2p("play", trained_run.path, "--window").error


def test_export_lists_what_it_wrote(p2p: Cli, tmp_path: Path, trained_run: IterationRecord) -> None:
    files = p2p("export", trained_run.path, "--to", "share/it", "--json").json["files"]
    assert "share/it/ppo-HalfCheetah-v5.zip" in files
    assert all((tmp_path / name).is_file() for name in files)
    again = p2p("export", trained_run.path, "--to", "share/it")
    assert again.status == 2
    assert "--to: share/it is not empty" in again.error


@pytest.mark.parametrize("command", ["evaluate", "play", "export"])
@pytest.mark.parametrize(
    ("run", "told"),
    [
        ("nowhere", "SESSION: no sessions in"),
        ("no/where", "RUN: no/where does not exist; give a session (its name, the start of it"),
        ("empty", "RUN: empty is neither a session nor a run; give a session (its name"),
        ("damaged", "RUN: damaged/config.json is damaged"),
        ("unfinished", "unfinished has no checkpoint yet"),
        ("gutted", "missing"),
    ],
)
def test_what_is_no_run_is_refused(
    p2p: Cli, tmp_path: Path, trained_run: IterationRecord, command: str, run: str, told: str
) -> None:
    for name in ("empty", "damaged", "unfinished"):
        (tmp_path / name).mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    shutil.copy(trained_run.config_path, tmp_path / "unfinished")
    shutil.copytree(trained_run.path, tmp_path / "gutted")
    for file in (tmp_path / "gutted").rglob("policy.safetensors"):
        file.unlink()
    outcome = p2p(command, run, *(("--to", "out") if command == "export" else ()))
    assert (outcome.status, outcome.out) == (2, "")
    assert told in outcome.error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("evaluate", "--checkpoint", "7"), "no checkpoint at step 7, only at 512, 1024"),
        (("play", "--checkpoint", "7"), "no checkpoint at step 7"),
        (("export", "--to", "out", "--checkpoint", "7"), "no checkpoint at step 7"),
        (("play", "--window"), "--window: there is no display here"),
        (("play", "--output", "film.gif"), "--output: film.gif must be a file that ends in .mp4"),
        (("export", "--to", "/dev/null"), "--to: /dev/null is a file"),
    ],
)
def test_bad_flags_are_named(
    p2p: Cli, trained_run: IterationRecord, arguments: tuple[str, ...], told: str
) -> None:
    command, *flags = arguments
    outcome = p2p(command, trained_run.path, *flags)
    assert outcome.status == 2
    assert told in outcome.error


def test_a_stored_reward_that_turned_hostile_is_told(
    p2p: Cli, tmp_path: Path, trained_run: IterationRecord
) -> None:
    shutil.copytree(trained_run.path, tmp_path / "run")
    (tmp_path / "run" / "reward_fn.py").write_text(
        "def reward_fn(obs, action, next_obs, info):\n"
        "    return len(open('/etc/hostname').read()), {}\n"
    )
    outcome = p2p("evaluate", "run", "--json")
    assert outcome.status == 1
    assert "Permission" in outcome.json["error"]


@pytest.mark.parametrize(
    ("arguments", "interrupted"),
    [
        (("evaluate", "last"), "p2p.training.replay.replay"),
        (("play", "last", "-o", "new.mp4"), "p2p.training.replay.replay"),
        (("export", "last", "--to", "new"), "p2p.training.export.model_card"),
    ],
)
def test_an_interrupted_command_says_so_and_leaves_no_file(
    p2p: Cli, session: SessionRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...], interrupted: str,
) -> None:  # fmt: skip
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, interrupt)
    outcome = p2p(*arguments)
    assert (outcome.status, outcome.out) == (130, "")
    assert outcome.err.splitlines()[-1] == "interrupted; nothing was written"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
