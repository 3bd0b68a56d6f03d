import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest

from p2p.config import EnvOptions
from p2p.records.iteration_record import IterationRecord
from p2p.training.evaluation import evaluate, evaluation_seed
from p2p.training.reward_runner import RewardRunner
from p2p.training.trajectory import RecordedEpisode
from p2p.training.vec_env import make_batched_env
from p2p.training.video import rendering
from p2p.training.video.rendering import (
    RenderJob,
    RenderSupport,
    VideoError,
    draw_video,
    drawing_environment,
    probe_backends,
    render,
    render_async,
    rendering_available,
)

LABELS = ("median", "p10", "p90")
ENVIRONMENTS = [
    f"{name}-v5"
    for name in (
        "HalfCheetah", "Ant", "Hopper", "Walker2d", "Humanoid", "HumanoidStandup", "Swimmer",
        "Reacher", "Pusher", "InvertedPendulum", "InvertedDoublePendulum",
    )
]  # fmt: skip
REWARD = 'def reward_fn(obs, action, next_obs, info):\n    return 1.0, {"one": 1.0}\n'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A HalfCheetah episode of 40 steps, as evaluation records it."""
    env = make_batched_env(EnvOptions("HalfCheetah-v5", max_episode_steps=40, side_info=True), 1)
    reward = RewardRunner(REWARD, 1, batched=False)
    rng = np.random.default_rng(0)

    def act(obs):
        return rng.uniform(-1, 1, (1, 6)).astype(np.float32)

    _, kept = evaluate(env, reward, act, rounds=1, seed=evaluation_seed(), step=0)
    path = tmp_path_factory.mktemp("recorded") / "t.npz"
    kept["median"].save(path)
    return path


def names(folder):
    return [path.name for path in folder.iterdir()]


def decoded(path):
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


def job(recorded, output, **changes):
    fields = {"env_id": "HalfCheetah-v5", "width": 160, "height": 120}
    return RenderJob(**{**fields, "trajectory": recorded, "output": output, **changes})


def test_a_recorded_episode_becomes_a_video(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    video = tmp_path / "videos" / "v.mp4"
    outcome = render(RenderJob(env_id="HalfCheetah-v5", trajectory=recorded, output=video))
    assert outcome.ok, outcome.error
    frames = decoded(video)
    assert {frame.shape for frame in frames} == {(480, 640, 3)}
    with av.open(str(video)) as file:
        assert file.streams.video[0].average_rate == 25
    assert outcome.frames == len(frames) == 50, "2 s at 25 frames per second"
    first, last = frames[0].astype(int), frames[-1].astype(int)
    middle = slice(160, 320)
    assert first[middle, middle].std() > 20, "there is nothing to see"
    assert np.abs(first - last)[middle].max() > 60, "nothing moves"
    assert names(tmp_path / "videos") == ["v.mp4"]
    assert names(tmp_path) == ["videos"], "MuJoCo's log has no place here"
    for frame in frames[::10]:
        assert frame[:40].std(axis=1).max() < 6, "the sky alone, no caption"
        assert frame[-30:].astype(int).min() > 90, "the ground alone, no caption"


def test_there_is_ground_wherever_a_runner_gets_to(recorded, tmp_path):
    """The model's own ground is drawn 40 m far; physics knows no end of it."""
    arrays = RecordedEpisode.load(recorded).arrays()
    arrays["qpos"] = arrays["qpos"].copy()
    arrays["qpos"][:, 0] += 3000.0
    RecordedEpisode.from_arrays(arrays).save(tmp_path / "far.npz")
    for source, video in ((recorded, "near.mp4"), (tmp_path / "far.npz", "far.mp4")):
        outcome = render(job(source, tmp_path / video))
        assert outcome.ok, outcome.error
    near, far = (decoded(tmp_path / name)[-1].astype(int) for name in ("near.mp4", "far.mp4"))
    below = slice(95, 120)  # under the cheetah
    assert near[below].std() > 5
    assert far[below].std() > 5
    assert abs(near[below].mean() - far[below].mean()) < 10


SHARES = """
import json, sys
import mujoco, numpy as np
from p2p.training.video.scene import Scene, choose_camera, open_model, place
shares = {}
for env_id in sys.argv[1:]:
    model, config = open_model(env_id)
    data = mujoco.MjData(model)
    place(model, data)
    view = choose_camera(model, data, config).at(data)
    with Scene(model, 320, 240) as scene:
        mask = scene.agent_mask(data, view)
        place(model, data)
        frame = scene.picture(data, view).astype(int)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    edges = np.abs(np.diff(frame[~mask.any(axis=1)], axis=1)).max(initial=0)
    shares[env_id] = [
        float(mask.mean()),
        float(max((rows[-1] - rows[0]) / 240, (columns[-1] - columns[0]) / 320)),
        bool(mask[[0, -1]].any() or mask[:, [0, -1]].any()),
        int(edges),
    ]
print(json.dumps(shares))
"""


def test_the_agent_is_large_and_whole_and_its_ground_soft_in_every_environment():
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARES, *ENVIRONMENTS],
        env=drawing_environment(rendering_available().backend or "egl", os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shares = json.loads(child.stdout.splitlines()[-1])
    assert list(shares) == ENVIRONMENTS
    for env_id, (area, extent, cut_off, step) in shares.items():
        assert 0.005 < area < 0.3, env_id
        assert 0.2 < extent < 0.9, env_id
        assert not cut_off, env_id
        if env_id in ENVIRONMENTS[:7]:  # those that travel over patterned ground
            assert step < 60, f"{env_id}: the ground's pattern flickers when it moves"


def test_jobs_are_independent_and_one_bad_file_costs_only_its_own_video(recorded, tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"no trajectory")
    outcomes = render_async(
        [
            job(bad, tmp_path / "a.mp4"),
            job(recorded, tmp_path / "b.mp4", env_id="Ant-v5"),
            job(recorded, tmp_path / "c.mp4", env_id="Nowhere-v0"),
            job(recorded, tmp_path / "d.mp4"),
        ]
    ).wait()
    assert [outcome.ok for outcome in outcomes] == [False, False, False, True]
    assert "TrajectoryFileError" in outcomes[0].error
    assert "Ant-v5 has 15 positions" in outcomes[1].error
    assert "Nowhere" in outcomes[2].error
    assert sorted(names(tmp_path)) == ["bad.npz", "d.mp4"]


def test_cancelling_ends_it_at_once_and_leaves_no_half_video(recorded, tmp_path):
    jobs = [job(recorded, tmp_path / f"{i}.mp4", width=640, height=480) for i in range(30)]
    process = render_async(jobs)
    while not process.outcomes():
        assert process.running()
        time.sleep(0.02)
    outcomes = process.cancel()
    assert not process.running()
    assert len(outcomes) == 30
    assert outcomes[0].ok
    assert outcomes[-1].error == "cancelled"
    whole = {outcome.output.name for outcome in outcomes if outcome.ok}
    assert set(names(tmp_path)) == whole


def test_an_interrupt_ends_the_process_that_draws(recorded, tmp_path, monkeypatch):
    started = []

    def interrupt(process):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(rendering.RenderProcess, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        render(job(recorded, tmp_path / "v.mp4"))
    assert not started[0].running()
    assert names(tmp_path) == []


def test_past_its_time_limit_it_is_ended(recorded, tmp_path):
    outcome = render_async([job(recorded, tmp_path / "v.mp4")], 0.05).wait()[0]
    assert not outcome.ok
    assert "not done within" in outcome.error
    assert names(tmp_path) == []


def test_without_rendering_nothing_is_started_and_the_outcome_says_why(
    recorded, tmp_path, monkeypatch
):
    none = RenderSupport(missing=("libegl1",), reason="egl: no library")
    monkeypatch.setattr(rendering, "rendering_available", lambda: none)
    outcome = render(job(recorded, tmp_path / "v.mp4"))
    assert not outcome.ok
    assert outcome.error.startswith("videos are off")
    assert "apt-get install libegl1" in outcome.error


def test_rendering_can_be_switched_off():
    support = probe_backends({**os.environ, "MUJOCO_GL": "disabled"})
    assert not support.ok
    assert "MUJOCO_GL=disabled" in support.message()


@pytest.mark.parametrize(
    ("code", "reason"),
    [("import os; os.abort()", "signal 6"), ("raise ImportError('no libEGL')", "no libEGL")],
)
def test_a_driver_that_crashes_is_found_out_in_a_child(tmp_path, code, reason):
    (tmp_path / "mujoco.py").write_text(code)
    support = probe_backends({"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)})
    assert (support.ok, support.backend) == (False, None)
    assert reason in support.reason
    assert support.message().startswith("videos are off")


def test_the_render_process_is_told_no_secrets():
    environ = {"ANTHROPIC_API_KEY": "s", "HOME": "/h", "DISPLAY": ":0", "MUJOCO_GL": ""}
    assert drawing_environment("egl", environ) == {
        "HOME": "/h", "DISPLAY": ":0", "MUJOCO_GL": "egl", "LP_NUM_THREADS": "1"
    }  # fmt: skip


def copied(tmp_path: Path, run: IterationRecord) -> IterationRecord:
    shutil.copytree(run.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "videos", ignore_errors=True)
    return IterationRecord(tmp_path / "run")


def test_a_recorded_episode_is_drawn_once(tmp_path: Path, trained_run: IterationRecord) -> None:
    record = copied(tmp_path, trained_run)
    names = record.video_filenames()
    assert names == [f"eval_{step}_{label}.mp4" for step in (512, 1024) for label in LABELS]
    assert not record.videos_dir.exists()
    path = draw_video(record.videos_dir / "eval_512_median.mp4")
    written = path.stat().st_mtime_ns
    assert draw_video(path).stat().st_mtime_ns == written
    assert [p.name for p in record.videos_dir.glob("*.mp4")] == ["eval_512_median.mp4"]
    assert record.video_filenames() == names


@pytest.mark.parametrize("name", ["eval_513_median.mp4", "eval_512_best.mp4", "other.mp4"])
def test_what_is_not_recorded_is_not_drawn(
    tmp_path: Path, trained_run: IterationRecord, name: str
) -> None:
    record = copied(tmp_path, trained_run)
    with pytest.raises(VideoError, match="no such episode is recorded"):
        draw_video(record.videos_dir / name)
    assert not record.videos_dir.exists()


def test_draw_video_names_what_is_wrong(tmp_path: Path, trained_run: IterationRecord) -> None:
    record = copied(tmp_path, trained_run)
    record.trajectory_file(512, "median").write_bytes(b"no trajectory")
    with pytest.raises(VideoError, match=r"eval_512_median.mp4: .*trajectory"):
        draw_video(record.videos_dir / "eval_512_median.mp4")
    assert list(record.videos_dir.glob("*.mp4")) == []


def test_draw_video_writes_through_no_link(tmp_path: Path, trained_run: IterationRecord) -> None:
    record = copied(tmp_path, trained_run)
    (tmp_path / "elsewhere").mkdir()
    record.videos_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VideoError, match="link"):
        draw_video(record.videos_dir / "eval_512_median.mp4")
    assert list((tmp_path / "elsewhere").iterdir()) == []
