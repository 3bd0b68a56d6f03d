"""`python -m p2p.executor` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from p2p.config import TrainConfig
from p2p.records.iteration_record import IterationRecord

EXAMPLES = Path(__file__).parents[2] / "examples" / "rewards"


def executor(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "p2p.executor", *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, timeout=300, check=False,
    )  # fmt: skip


def write_config(folder: Path, config: TrainConfig, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(config.to_json()), **changes}))
    return path


@pytest.mark.parametrize("name", ["speed_class.py", "speed_function.py"])
def test_the_documented_rewards_train_as_printed(
    tmp_path: Path, small_config: TrainConfig, name: str
) -> None:
    config = write_config(tmp_path, small_config)
    done = executor("--reward-fn", EXAMPLES / name, "--config", config, "--no-videos", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.parent.parent == tmp_path / "runs"
    record = IterationRecord(folder)
    assert record.derive_status() == "completed"
    assert record.read_reward_spec().terms["speed"] == "forward velocity"


def test_the_environment_of_the_config_counts_unless_the_flag_is_given(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def reward_fn(obs, action, next_obs, info):\n    return 1.0, {'alive': 1.0}\n"
    )
    config = write_config(tmp_path, small_config, env_id="Hopper-v5")
    seen = {}
    for flags in ((), ("--env-id", "Swimmer-v5")):
        done = executor(
            "--reward-fn", reward, "--config", config, "--no-videos", *flags, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        record = IterationRecord(Path(done.stdout.splitlines()[-1]))
        seen[flags] = (record.read_config() or {})["env_id"]
    assert list(seen.values()) == ["Hopper-v5", "Swimmer-v5"]


def test_a_session_folder_is_used_directly(tmp_path: Path, small_config: TrainConfig) -> None:
    config = write_config(tmp_path, small_config)
    session = tmp_path / "session_x"
    done = executor(
        "--reward-fn", EXAMPLES / "speed_function.py", "--config", config,
        "--runs-dir", session, "--iteration-id", "iter_7", "--no-videos", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]) == session / "iter_7"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "Invalid JSON"),
        ('{"learning_rte": 1}', "learning_rte"),
        ('{"num_envs": 0}', "num_envs"),
        ('{"num_minibatches": 7}', "num_minibatches"),
        ("[]", "config.json"),
    ],
)
def test_a_bad_config_is_named_and_nothing_is_started(
    tmp_path: Path, config: str, told: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(config)
    done = executor("--reward-fn", EXAMPLES / "speed_function.py", "--config", path, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("--reward-fn", "missing.py"),
        ("--reward-fn", str(EXAMPLES / "speed_class.py"), "--config", "missing.json"),
        ("--reward-fn", str(EXAMPLES / "speed_class.py"), "--iteration-id", "../out"),
    ],
)
def test_a_bad_path_is_named(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = executor(*flags, cwd=tmp_path)
    assert done.returncode == 2
    assert flags[-1] in done.stderr
    assert "Traceback" not in done.stderr


def start(reward: Path, config: Path, session: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "p2p.executor", "--reward-fn", str(reward), "--config", str(config),
         "--runs-dir", str(session), "--iteration-id", "iter_1", "--no-videos"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def wait_for_steps(record: IterationRecord, steps: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        training, _ = record.parse_scalars()
        if training and training[-1]["global_step"] >= steps:
            return
        time.sleep(0.02)
    raise TimeoutError(f"{steps} steps were not reached")


def sandboxed_children(of: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == of:
            found.append(int(path.parent.name))
    return found


def test_killed_and_resumed_gives_the_very_policy_of_an_uninterrupted_run(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(batched_reward)
    config = write_config(
        tmp_path, small_config, total_timesteps=60 * 256, checkpoint_interval=1000, num_evals=3
    )
    straight, broken = tmp_path / "session_straight", tmp_path / "session_broken"
    assert start(reward, config, straight).wait() == 0

    record = IterationRecord(broken / "iter_1")
    for steps in (256 * 10, 256 * 30):
        process = start(reward, config, broken)
        wait_for_steps(record, steps)
        children = sandboxed_children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline, "the sandboxed trainer outlived its parent"
            time.sleep(0.02)
    assert start(reward, config, broken).wait() == 0

    whole = IterationRecord(straight / "iter_1")
    for name in (
        "checkpoints/step_15360/policy.safetensors",
        "checkpoints/step_5120/policy.safetensors",
    ):
        assert (record.path / name).read_bytes() == (whole.path / name).read_bytes()
    timing = {"sps", "elapsed_time", "rollout_time", "train_time"}

    def lines(of: IterationRecord) -> list[dict[str, object]]:
        training, evaluation = of.parse_scalars()
        return [
            {k: v for k, v in line.items() if k not in timing} for line in training + evaluation
        ]

    assert lines(record) == lines(whole)


def test_terminating_it_ends_as_cancelled_and_can_be_resumed(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(batched_reward)
    config = write_config(tmp_path, small_config, total_timesteps=256 * 200)
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    process = start(reward, config, tmp_path / "session_x")
    wait_for_steps(record, 256 * 3)
    process.terminate()
    assert process.wait(timeout=30) == 130
    assert record.derive_status() == "cancelled"
    assert start(reward, config, tmp_path / "session_x").wait() == 0
    assert record.derive_status() == "completed"
