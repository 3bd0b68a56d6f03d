import os
import sys
import time

import av
import numpy as np
import pytest

from p2p.training.evaluation import evaluate, evaluation_seed
from p2p.training.reward.runner import RewardRunner
from p2p.training.trajectory import Trajectory
from p2p.training.vec_env import make_batched_env
from p2p.training.video import rendering
from p2p.training.video.encode import _line
from p2p.training.video.rendering import (
    RenderJob,
    overlay_texts,
    render,
    render_async,
)
from p2p.training.video.support import (
    RenderSupport,
    drawing_environment,
    probe_backends,
    rendering_available,
)

REWARD = 'def reward_fn(obs, action, next_obs, info):\n    return 1.0, {"one": 1.0}\n'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A HalfCheetah episode of 40 steps, as evaluation records it."""
    env = make_batched_env("HalfCheetah-v5", 1, max_episode_steps=40)
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
    fields = {"env_id": "HalfCheetah-v5", "title": "median", "width": 160, "height": 160}
    return RenderJob(**{**fields, "trajectory": recorded, "output": output, **changes})


def test_a_recorded_episode_becomes_a_video(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = render(job(recorded, tmp_path / "videos" / "v.mp4"))
    assert outcome.ok, outcome.error
    frames = decoded(tmp_path / "videos" / "v.mp4")
    assert outcome.frames == len(frames) == 40
    first, last = frames[0].astype(int), frames[-1].astype(int)
    middle = slice(40, 120)
    assert first[middle, middle].std() > 20, "there is nothing to see"
    assert np.abs(first - last)[middle].max() > 60, "nothing moves"
    assert names(tmp_path / "videos") == ["v.mp4"]
    assert names(tmp_path) == ["videos"], "MuJoCo's log has no place here"


def test_there_is_ground_wherever_a_runner_gets_to(recorded, tmp_path):
    """The model's own ground is drawn 40 m far; physics knows no end of it."""
    arrays = Trajectory.load(recorded).arrays()
    arrays["qpos"] = arrays["qpos"].copy()
    arrays["qpos"][20:, 0] += 300.0
    Trajectory.from_arrays(arrays).save(tmp_path / "far.npz")
    outcome = render(job(tmp_path / "far.npz", tmp_path / "v.mp4"))
    assert outcome.ok, outcome.error
    frames = decoded(tmp_path / "v.mp4")
    below = slice(110, 145)  # under the cheetah, above the text
    assert frames[0][below].std() > 50
    assert frames[-1][below].std() > 50


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


def test_an_environment_that_a_user_registered_is_drawn_from_its_model(tmp_path, monkeypatch):
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv\n"
        "class Own(HalfCheetahEnv):\n"
        "    def __init__(self, **kwargs):\n"
        "        super().__init__(default_camera_config=None, **kwargs)\n"
        "gymnasium.register('Own-v0', entry_point=Own, max_episode_steps=5)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    fields = {
        "step": np.arange(3), "timestamp": 0.05 * np.arange(1, 4), "obs": np.zeros((3, 17)),
        "action": np.zeros((3, 6)), "next_obs": np.zeros((3, 17)), "reward": np.zeros(3),
        "cumulative_reward": np.zeros(3), "terminated": np.zeros(3, bool),
        "truncated": np.zeros(3, bool), "qpos": np.zeros((3, 9)),
        "_reward_term_names": np.array([], str),
    }  # fmt: skip
    Trajectory.from_arrays(fields).save(tmp_path / "t.npz")
    outcome = render(job(tmp_path / "t.npz", tmp_path / "v.mp4", env_id="own_envs:Own-v0"))
    assert outcome.ok, outcome.error
    assert decoded(tmp_path / "v.mp4")[0][50:110, 30:130].std() > 20


def test_cancelling_ends_it_at_once_and_leaves_no_half_video(recorded, tmp_path):
    jobs = [job(recorded, tmp_path / f"{i}.mp4", width=640, height=640) for i in range(30)]
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


def test_past_its_time_limit_it_is_ended(recorded, tmp_path):
    outcome = render(job(recorded, tmp_path / "v.mp4"), time_limit=0.05)
    assert not outcome.ok
    assert "not done within" in outcome.error
    assert names(tmp_path) == []


def test_without_rendering_nothing_is_started_and_the_outcome_says_why(
    recorded, tmp_path, monkeypatch
):
    none = RenderSupport(ok=False, missing=("libegl1",), reason="egl: no library")
    monkeypatch.setattr(rendering, "rendering_available", lambda: none)
    outcome = render(job(recorded, tmp_path / "v.mp4"))
    assert not outcome.ok
    assert outcome.error.startswith("videos are off")
    assert "apt-get install libegl1" in outcome.error


def test_no_jobs_need_no_process():
    assert render_async([]).wait() == ()


def test_this_machine_draws_without_a_display():
    support = rendering_available()
    assert support.ok, support.message()


def test_an_empty_setting_is_no_setting():
    without = {k: v for k, v in os.environ.items() if k != "MUJOCO_GL"}
    assert probe_backends({**without, "MUJOCO_GL": ""}).ok


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


@pytest.mark.parametrize("total", [-0.001, 3.0, -999.94, 12345.6, -612345.6, 3e9])
def test_the_overlay_has_room_for_long_episodes_and_large_returns(recorded, total):
    arrays = Trajectory.load(recorded).arrays()
    n = len(arrays["step"])
    arrays["step"] = arrays["step"] + 99_960
    arrays["timestamp"] = arrays["timestamp"] + 999
    arrays["cumulative_reward"] = np.full(n, total)
    texts = overlay_texts(Trajectory.from_arrays(arrays), n - 1)
    assert texts[1] == "step 100000 / 100000"
    time_, step, return_ = (_line(text, 16).shape[1] for text in texts)
    assert 10 + time_ < 10 + 480 // 4
    assert 10 + 480 // 4 + step < 480 - 10 - return_


def test_asking_for_videos_loads_no_heavy_library():
    code = (
        "import sys, p2p.training.video.rendering\n"
        "assert not {'mujoco', 'gymnasium', 'av', 'PIL', 'torch', 'jax'} & set(sys.modules)\n"
    )
    assert os.system(f'{sys.executable} -c "{code}"') == 0  # noqa: S605
