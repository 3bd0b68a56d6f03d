"""Whole runs: sandbox, training, evaluation, publishing, failing, resuming."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from processes import descendants, kill_process, wait_until

from p2p.config import TrainConfig
from p2p.contracts import StateSaved, WorkerMessage
from p2p.records.iteration_record import IterationRecord
from p2p.training.checkpoints import (
    checkpoint_steps,
    export_policy,
    forget_checkpoints,
    published_bytes,
)
from p2p.training.policies.policy import Policy
from p2p.training.runner import (
    RunOptions,
    TrainingCancelled,
    TrainingFailed,
    run_training,
    select_checkpoint,
)
from p2p.training.trajectory import RecordedEpisode

QUIET = RunOptions(videos=False)


def test_a_run_leaves_policies_curves_videos_and_trajectories(trained_run: IterationRecord) -> None:
    from stable_baselines3 import PPO

    record, summary = trained_run, trained_run.read_summary()
    assert summary is not None
    assert record.derive_status() == "completed"
    assert record.validate() == []
    assert (summary.backend, summary.reward_calls) == ("fast", "batch")
    assert [info.step for info in summary.checkpoints] == [512, 1024]
    assert summary.selected_step == 1024
    spec = record.read_reward_spec()
    assert spec.latex == "r = v_x - 0.1 |a|^2"
    assert spec.terms == {"speed": "forward velocity", "ctrl": "control penalty"}
    training, evaluation = record.parse_scalars()
    assert [line["global_step"] for line in training] == [256, 512, 768, 1024]
    assert {"policy_loss", "grad_norm", "kl_mean_term", "reward_term_speed"} <= training[-1].keys()
    assert [line["global_step"] for line in evaluation] == [512, 1024]
    for step in (512, 1024):
        folder = record.checkpoints_dir / f"step_{step}"
        policy = Policy.load(folder / "policy.safetensors")
        obs = np.random.default_rng(0).normal(size=(5, 17))
        obs = policy.obs_mean + np.sqrt(policy.obs_var) * obs
        predicted, _ = PPO.load(export_policy(record, step)).predict(obs, deterministic=True)
        np.testing.assert_allclose(predicted, policy.act(obs), atol=1e-5)
        for label in ("p10", "median", "p90"):
            trajectory = RecordedEpisode.load(record.trajectory_file(step, label))
            assert trajectory.length == 40
    (drawn,) = record.videos_dir.glob("*.mp4")
    assert drawn.name == "eval_1024_median.mp4"
    with av.open(str(drawn)) as video:
        stream = video.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert sum(1 for _ in video.decode(stream)) >= 20
    assert not record.work_dir.exists()


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_wide_network_of_sac_is_the_same_on_any_number_of_cores(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str
) -> None:
    config = small_config.with_updates(algorithm="sac", net_arch=(256, 256), replay_size=10_000)
    cores = os.sched_getaffinity(0)
    policies = []
    for some in ({min(cores)}, cores):
        record = IterationRecord(tmp_path / str(len(some)))
        os.sched_setaffinity(0, some)
        try:
            run_training(config, batched_reward, record, options=QUIET)
        finally:
            os.sched_setaffinity(0, cores)
        step = record.checkpoints_dir / "step_1024"
        policies.append((step / "policy.safetensors").read_bytes())
    assert policies[0] == policies[1]


def test_folders_of_other_names_are_no_checkpoints_and_stay(tmp_path: Path) -> None:
    record = IterationRecord(tmp_path)
    for name in ("step_512", "step_1024", "step_x", "step_", f"step_{'9' * 5000}"[:200]):
        (record.checkpoints_dir / name).mkdir(parents=True)
        (record.checkpoints_dir / name / "policy.safetensors").write_bytes(b"12345")
    record.trajectory_file(512, "median").parent.mkdir(parents=True, exist_ok=True)
    record.trajectory_file(512, "median").write_bytes(b"123")
    (tmp_path / "executor.log").write_bytes(b"x" * 999)
    assert checkpoint_steps(record) == [512, 1024]
    assert published_bytes(record) == 13
    forget_checkpoints(record, after=512)
    assert checkpoint_steps(record) == [512]
    assert (record.checkpoints_dir / "step_x").exists()


def files(record: IterationRecord) -> set[str]:
    paths = (path.relative_to(record.path) for path in record.path.rglob("*"))
    return {str(path) for path in paths if not {"tensorboard", "videos"} & {*path.parts}}


def test_the_same_seed_gives_the_same_policy_and_the_reference_backend_the_same_files(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str, trained_run: IterationRecord
) -> None:
    again, reference = IterationRecord(tmp_path / "again"), IterationRecord(tmp_path / "sb3")
    run_training(small_config, batched_reward, again, options=QUIET)
    policy = Path("checkpoints") / "step_1024" / "policy.safetensors"
    assert (again.path / policy).read_bytes() == (trained_run.path / policy).read_bytes()
    config = small_config.with_updates(backend="sb3")
    assert run_training(config, batched_reward, reference, options=QUIET).backend == "sb3"
    assert files(again) == files(reference)
    for mine, theirs in zip(again.parse_scalars(), reference.parse_scalars(), strict=True):
        assert mine[-1].keys() == theirs[-1].keys()


def test_a_complete_run_is_not_done_again_and_another_one_is_refused(
    small_config: TrainConfig, batched_reward: str, trained_run: IterationRecord
) -> None:
    heard: list[WorkerMessage] = []
    summary = run_training(small_config, batched_reward, trained_run, on_message=heard.append)
    assert (summary, heard) == (trained_run.read_summary(), [])
    with pytest.raises(TrainingFailed, match="holds another run"):
        run_training(small_config.with_updates(seed=2), batched_reward, trained_run)
    assert trained_run.derive_status() == "completed"


REWARD = "def reward_fn(obs, action, next_obs, info):\n    {body}\n    return 0.0, {{'a': 0.0}}\n"
# Well after the trial calls before training; kept where no new episode resets it.
LATER = "import builtins as b; b.n = getattr(b, 'n', 0) + 1\n    if b.n > 400: "


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (LATER + "raise KeyError('x_speed')", "x_speed"),
        (LATER + "import sys; sys.exit(3)", "ended the process|SystemExit"),
        (LATER + "import os; os._exit(0)", r"training ended at step \d+ .*os\._exit"),
        (LATER + "bytearray(50 * 2**30)", "[Mm]emory"),
        (LATER + "import socket; socket.socket()", "not permitted|PermissionError"),
    ],
)
def test_a_bad_reward_ends_the_run_with_its_reason(
    tmp_path: Path, small_config: TrainConfig, body: str, reason: str
) -> None:
    record = IterationRecord(tmp_path / "iter_1")
    options = RunOptions(videos=False, memory_bytes=6 * 2**30)
    with pytest.raises(TrainingFailed, match=reason) as caught:
        run_training(small_config, REWARD.format(body=body), record, options=options)
    assert caught.value.kind == "reward"
    status = record.read_status()
    assert status is not None
    assert status.status == "failed"
    assert status.error == str(caught.value)
    assert record.read_summary() is None


def test_a_reward_that_hangs_is_stopped_and_named(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    record = IterationRecord(tmp_path / "iter_1")
    code = REWARD.format(body=LATER + "[0 for _ in iter(int, 1)]")
    options = RunOptions(videos=False, stall_seconds=15)
    with pytest.raises(TrainingFailed, match=r"the reward, in line 3, hangs: .* for 15 s"):
        run_training(small_config, code, record, options=options)
    assert record.derive_status() == "failed"


def test_a_reward_that_does_not_load_names_its_line(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    record = IterationRecord(tmp_path / "iter_1")
    with pytest.raises(TrainingFailed, match=r"reward_fn\.py:2"):
        run_training(small_config, "x = 1\ndef reward_fn(:\n", record, options=QUIET)
    assert record.derive_status() == "failed"


SLOW = """
import time

def reward_fn(obs, action, next_obs, info):
    time.sleep(0.005)
    return info["x_velocity"], {"speed": info["x_velocity"]}
"""
"""Slow enough to be killed on the way."""


def kill_the_sandbox(times: int) -> Callable[[WorkerMessage], None]:
    """Kill the training so often, each time some way into it."""
    left = times
    others = descendants(os.getpid())  # such as a server that forks trials

    def hear(message: WorkerMessage) -> None:
        nonlocal left
        if left and isinstance(message, StateSaved):
            left -= 1
            kill_process("sandbox/enter.py", others=others)

    return hear


def test_a_training_killed_from_outside_resumes_once_and_is_not_the_rewards_fault(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    record = IterationRecord(tmp_path / "iter_1")
    config = small_config.with_updates(total_timesteps=2048, num_evals=1)
    with pytest.raises(TrainingFailed, match=r"killed from outside.*second time") as caught:
        run_training(config, SLOW, record, options=QUIET, on_message=kill_the_sandbox(2))
    assert caught.value.kind == "environment"
    assert record.derive_status() == "error"
    summary = run_training(config, SLOW, record, options=QUIET, on_message=kill_the_sandbox(1))
    assert summary.total_timesteps == 2048
    assert any("SIGKILL" in warning for warning in summary.warnings)
    training, _ = record.parse_scalars()
    assert [line["global_step"] for line in training] == list(range(256, 2049, 256))


def test_an_unknown_environment_is_an_error_that_names_near_ones(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str
) -> None:
    record = IterationRecord(tmp_path / "iter_1")
    with pytest.raises(TrainingFailed, match="HalfCheetah-v5") as caught:
        run_training(
            small_config.with_updates(env_id="HalfCheeta-v5"), batched_reward, record, options=QUIET
        )
    assert caught.value.kind == "config"


def test_a_cancelled_status_stops_the_run_and_stays(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.training.runner.HEARTBEAT_S", 0.2)
    record = IterationRecord(tmp_path / "iter_1")

    def cancel_when_running() -> None:
        wait_until(lambda: record.derive_status() == "running")
        time.sleep(1)
        record.set_status("cancelled")

    thread = threading.Thread(target=cancel_when_running)
    thread.start()
    with pytest.raises(TrainingCancelled):
        run_training(
            small_config.with_updates(total_timesteps=50_000_000),
            batched_reward,
            record,
            options=QUIET,
        )
    thread.join()
    assert record.derive_status() == "cancelled"


def test_any_gymnasium_environment_trains(tmp_path: Path) -> None:
    config = TrainConfig(
        env_id="Pendulum-v1", num_envs=2, num_steps=64, num_minibatches=2, update_epochs=1,
        total_timesteps=256, max_episode_steps=30, num_evals=1, num_eval_rounds=1,
    )  # fmt: skip
    code = (
        "def reward_fn(obs, action, next_obs, info):\n    return obs[..., 0], {'up': obs[..., 0]}"
    )
    record = IterationRecord(tmp_path / "iter_1")
    summary = run_training(config, code, record)
    assert summary.backend == "fast"
    assert summary.reward_calls == "batch"
    # There is no MuJoCo state to draw, which costs the videos and nothing else.
    assert any("no video" in warning for warning in summary.warnings)
    assert (record.checkpoints_dir / "step_256" / "policy.zip").exists()


def test_the_best_checkpoint_is_the_later_one_of_equals() -> None:
    from p2p.contracts import CheckpointInfo

    checkpoints = tuple(
        CheckpointInfo(step=step, mean_return=value, std_return=0)
        for step, value in ((1, 3.0), (2, 5.0), (3, 5.0), (4, 1.0))
    )
    assert select_checkpoint(checkpoints, "best") == 3
    assert select_checkpoint(checkpoints, "last") == 4
    assert select_checkpoint((), "last") is None


OWN_MODULE = '''
import gymnasium as gym
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

class MyPendulum(InvertedPendulumEnv):
    """An environment of a user's own."""

gym.register("MyPendulum-v0", entry_point=MyPendulum, max_episode_steps=30)
'''


def test_an_environment_of_the_users_own_trains_and_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from p2p.settings import get_settings

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_environments.py").write_text(OWN_MODULE)
    monkeypatch.setattr("sys.path", list(sys.path))
    config = TrainConfig(
        env_id="my_environments:MyPendulum-v0", num_envs=2, num_steps=32, num_minibatches=2,
        update_epochs=1, total_timesteps=64, num_evals=1, num_eval_rounds=1,
    )  # fmt: skip
    code = "def reward_fn(obs, action, next_obs, info):\n    return 1.0, {'alive': 1.0}"
    with pytest.raises(TrainingFailed, match="P2P_ENV_PATH"):
        run_training(config, code, IterationRecord(tmp_path / "a"), options=QUIET)
    monkeypatch.setenv("P2P_ENV_PATH", str(folder))
    get_settings.cache_clear()
    try:
        record = IterationRecord(tmp_path / "b")
        run_training(config, code, record)
    finally:
        get_settings.cache_clear()
    assert record.derive_status() == "completed"
    assert "eval_64_median.mp4" in record.video_filenames()


@pytest.mark.parametrize(
    ("fault", "in_reward", "kind", "message"),
    [
        ("time.sleep(0.2)", "pass", "environment", "wall clock.* reward's calls took 0%"),
        ("pass", "import time; time.sleep(0.2)", "reward", "reward.s calls took [5-9]"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "pass", "environment", "SIGSEGV.* compiled code"),
        ("raise MemoryError", "pass", "environment", "memory limit .* outside of the reward"),
        ("time.sleep(99)", "pass", "environment", r"environment, in step \(faulty.py:\d+\), hangs"),
    ],
)
def test_a_run_names_what_ended_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faulty_environment: Callable[[str, int], str],
    fault: str,
    in_reward: str,
    kind: str,
    message: str,
) -> None:
    limit = 200.0 if "hangs" in message else 25.0
    monkeypatch.setattr("p2p.training.runner.longest_training_s", lambda _: limit)
    config = TrainConfig(
        env_id=faulty_environment(fault, 300), num_envs=2, num_steps=1000, num_minibatches=2,
        total_timesteps=100_000, num_evals=1,
    )  # fmt: skip
    record = IterationRecord(tmp_path / "iter_1")
    options = RunOptions(videos=False, stall_seconds=15)
    with pytest.raises(TrainingFailed, match=message) as caught:
        run_training(config, REWARD.format(body=LATER + in_reward), record, options=options)
    assert caught.value.kind == kind
    assert record.derive_status() == ("failed" if kind == "reward" else "error")


FILES = "for n in os.listdir('.'): n.startswith('{start}') and {act}"


@pytest.mark.parametrize(
    ("mischief", "reason"),
    [
        (FILES.format(start="state_", act="os.remove(n)"), "state_"),
        (FILES.format(start="policy_", act="open(n, 'wb').write(b'x')"), "policy_"),
        ("os.write(int(sys.argv[1]), b'{}\\n')", "not a message"),
        ("os.write(int(sys.argv[1]), b'[' * 60_000 + b'\\n')", "not a message"),
        (
            """os.write(int(sys.argv[1]),b'{"type":"alive","phase":"eval","global_step":-1}\\n')""",
            "step -1 of",
        ),
        (
            (
                "os.mkdir('state_5.safetensors'); os.write(int(sys.argv[1]),"
                """ b'{"type":"state","global_step":5,"file":"state_5.safetensors"}\\n')"""
            ),
            "state_5.safetensors.* is not a",
        ),
    ],
)
def test_a_reward_that_meddles_with_the_results_fails_its_run(
    tmp_path: Path, small_config: TrainConfig, mischief: str, reason: str
) -> None:
    # A thread, so that it acts between the trainer's own steps.
    code = f"""
import os, sys, threading, time

def meddle():
    while True:
        try:
            {mischief}
        except OSError:
            pass

threading.Thread(target=meddle, daemon=True).start()

def reward_fn(obs, action, next_obs, info):
    time.sleep(0.002)
    return 0.0, {{"a": 0.0}}
"""
    record = IterationRecord(tmp_path / "iter_1")
    with pytest.raises(TrainingFailed, match=reason):
        run_training(small_config, code, record, options=QUIET)
    assert record.derive_status() in ("failed", "error")


FORGES = """
import os, time
import numpy as np
from p2p.contracts import EvalReady
from p2p.training import training_loop

real = training_loop.send_evaluation

def forge(ctx, policy_file, result, trajectories):
    weights = (ctx.folder / policy_file).read_bytes()
    real(ctx, policy_file, result, trajectories)
    if not os.path.exists({flag!r}):
        return
    arrays = trajectories["median"].arrays()
    rows, random = len(arrays["step"]), np.random.default_rng(0)
    large = dict(arrays)
    for name, column in arrays.items():
        if name != "reward_term_names" and len(column) == rows:
            shape = (200 * rows, *column.shape[1:])
            large[name] = random.normal(size=shape).astype(column.dtype)
    for i in range(1, 21):
        (ctx.folder / f"policy{{i}}").write_bytes(weights)
        np.savez(ctx.folder / f"trajectory{{i}}.npz", **large)
        ctx.send(EvalReady(
            result=result.model_copy(update={{"global_step": result.global_step + i}}),
            policy_file=f"policy{{i}}", trajectory_files={{"median": f"trajectory{{i}}.npz"}}))
        while os.path.exists(f"trajectory{{i}}.npz"):
            time.sleep(0.01)

training_loop.send_evaluation = forge

def reward_fn(obs, action, next_obs, info):
    return info["x_velocity"], {{"speed": info["x_velocity"]}}
"""


@pytest.mark.slow
def test_a_flood_of_forged_evaluations_stays_in_the_limit_and_the_run_resumes(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    limit = 32 << 20
    flag = tmp_path / "hostile"
    flag.touch()
    record = IterationRecord(tmp_path / "iter_1")
    config = small_config.with_updates(num_evals=30)
    code, options = FORGES.format(flag=str(flag)), RunOptions(videos=False, disk_bytes=limit)
    with pytest.raises(TrainingFailed) as caught:
        run_training(config, code, record, options=options)
    assert caught.value.kind == "reward"
    assert record.derive_status() == "failed"
    assert len(list(record.checkpoints_dir.iterdir())) > 2, "some of the flood was published"
    left = sum(path.stat().st_blocks * 512 for path in record.path.rglob("*"))
    assert left <= limit
    flag.unlink()
    summary = run_training(config, code, record, options=options)
    assert summary.total_timesteps == config.total_timesteps
    steps = [info.step for info in summary.checkpoints]
    assert checkpoint_steps(record) == steps, "what was forged is gone"


def test_a_folder_that_cannot_be_written_is_an_error_not_a_traceback(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str
) -> None:
    record = IterationRecord(tmp_path / "iter_1")
    record.path.mkdir()
    record.checkpoints_dir.write_text("a file where a folder must be")
    with pytest.raises(TrainingFailed, match="iter_1"):
        run_training(small_config, batched_reward, record, options=QUIET)
    assert record.derive_status() == "error"
