"""`python -m p2p.executor` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from p2p.config import TrainConfig
from p2p.executor.__main__ import main
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


@pytest.mark.parametrize(
    ("reward", "flags", "folder", "env_id"),
    [
        ("speed_class.py", (), "runs/session_*/iter_1", "HalfCheetah-v5"),
        (
            "speed_function.py",
            ("--runs-dir", "session_x", "--iteration-id", "iter_7", "--env-id", "Swimmer-v5"),
            "session_x/iter_7",
            "Swimmer-v5",
        ),
    ],
)
def test_the_documented_rewards_train_where_and_on_what_the_flags_say(
    tmp_path: Path,
    small_config: TrainConfig,
    reward: str,
    flags: tuple[str, ...],
    folder: str,
    env_id: str,
) -> None:
    config = write_config(tmp_path, small_config, env_id="HalfCheetah-v5")
    done = executor(
        "--reward-fn", EXAMPLES / reward, "--config", config, "--no-videos", *flags, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert [tmp_path / path] == list(tmp_path.glob(folder))
    record = IterationRecord(tmp_path / path)
    assert record.derive_status() == "completed"
    assert (record.read_config() or {})["env_id"] == env_id
    assert record.read_reward_spec().terms["speed"] == "forward velocity"


@pytest.mark.parametrize(
    ("flags", "config", "message"),
    [
        ((), "{", "Invalid JSON"),
        ((), '{"learning_rte": 1}', "learning_rte: no such field"),
        ((), '{"num_envs": 0}', "num_envs"),
        ((), '{"num_minibatches": 7}', "num_minibatches"),
        ((), "[]", "config.json"),
        (("--reward-fn", "missing.py"), "{}", "--reward-fn: missing.py does not exist"),
        (("--config", "missing.json"), "{}", "--config: missing.json does not exist"),
        (("--iteration-id", "../out"), "{}", "--iteration-id: "),
        (("--until", "0"), "{}", "--until: 0 is not a step"),
        (("--pause",), "{}", "--pause: at which step?"),
    ],
)
def test_bad_input_is_named_and_nothing_is_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    config: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(config)
    reward = str(EXAMPLES / "speed_function.py")
    assert main(["--reward-fn", reward, "--config", "config.json", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


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


@pytest.mark.slow
@pytest.mark.process
def test_killed_terminated_and_resumed_it_gives_the_very_policy_of_an_uninterrupted_run(
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
    for number, steps in ((signal.SIGKILL, 256 * 10), (signal.SIGTERM, 256 * 30)):
        process = start(reward, config, broken)
        wait_for_steps(record, steps)
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGTERM else -number)
        deadline = time.monotonic() + 10
        while any(child.is_running() for child in children):
            assert time.monotonic() < deadline, "the sandboxed trainer outlived its parent"
            time.sleep(0.02)
    assert record.derive_status() == "cancelled"
    assert start(reward, config, broken).wait() == 0
    assert record.derive_status() == "completed"

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
