"""`p2p train`."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from cli_runner import Cli, start

from p2p.config import TrainConfig
from p2p.records.iteration_record import IterationRecord

REWARD = "def reward_fn(obs, action, next_obs, info):\n    return {}, {{}}\n"


def test_json_is_one_document_and_names_what_was_made(
    tmp_path: Path, config_file: Path, batched_reward: str
) -> None:
    (tmp_path / "reward.py").write_text(batched_reward)
    process = start(
        "train", "reward.py", "--config", config_file, "--set", "num_evals=1", "--seed", "5",
        "--no-videos", "--json", cwd=tmp_path,
    )  # fmt: skip
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    made = json.loads(out)
    assert Path(made["policy"]).is_file()
    assert made["videos"] == []
    assert made["summary"]["seed"] == 5
    assert len(made["summary"]["checkpoints"]) == 1
    record = IterationRecord(Path(made["iteration_dir"]))
    assert record.path.parent.parent == tmp_path / "runs"
    assert record.derive_status() == "completed"
    assert "evaluation over" in err
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "reward.py", config_file.name}


def test_the_reward_file_names_its_environment(p2p: Cli, tmp_path: Path, config_file: Path) -> None:
    """As `p2p rewards NAME > reward.py` writes it."""
    fields = {"env_id"}
    config_file.write_text(
        TrainConfig.from_json(config_file.read_text()).model_dump_json(exclude=fields)
    )
    (tmp_path / "reward.py").write_text(p2p("rewards", "swimmer_turn").out)
    outcome = p2p("train", "reward.py", "--config", config_file, "--no-videos")
    assert outcome.status == 0, outcome.err
    assert "Swimmer-v5" in outcome.err
    said = dict(line.split(maxsplit=1) for line in outcome.out.splitlines() if " " in line)
    assert Path(said["policy"]).is_file()
    assert said["watch"] == f"p2p play {said['run']}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name a reward"),
        (("nowhere.py",), "reward: nowhere.py does not exist"),
        (("sub/nowhere",), "reward: sub/nowhere does not exist"),
        (("folder.py",), "reward: folder.py is a directory"),
        (("binary.py",), "reward: binary.py is not a text file"),
        (("empty.py",), "reward: empty.py is empty"),
        (("ant_spinn",), "did you mean ant_spin"),
        (("ant_spin", "--env", "Ant-v55"), "--env: no environment 'Ant-v55' is registered"),
        (("ant_spin", "--env", "ant-v5"), "did you mean Ant-v5"),
        (("ant_spin", "--set", "env_id=Antv5"), "did you mean Ant-v5"),
        (("ant_spin", "--set", "seed"), "--set seed: write it as FIELD=VALUE"),
        (("ant_spin", "--set", "=3"), "--set =3: write it as FIELD=VALUE"),
        (("ant_spin", "--set", "learning_rte=1"), "did you mean learning_rate?"),
        (("ant_spin", "--set", "num_envs=many"), "num_envs"),
        (("ant_spin", "--set", "num_minibatches=7"), "num_minibatches=7 must divide"),
        (("ant_spin", "--steps", "0"), "total_timesteps"),
        (("ant_spin", "--config", "nowhere.json"), "--config: nowhere.json does not exist"),
        (("ant_spin", "--config", "torn.json"), "--config: torn.json is not JSON"),
        (("ant_spin", "--config", "list.json"), "--config: list.json must hold a JSON object"),
        (("ant_spin", "--config", "field.json"), "--config field.json: gama: no such field; did"),
        (("pusher_push", "--preset"), "--preset: no preset for Pusher-v5"),
        (("ant_spin", "--preset", "--set", "num_envs=0"), "num_envs"),
        (("ant_spin", "--log", "wandbb"), "did you mean wandb?"),
        (("--resume", "nowhere"), "--resume: nowhere does not exist"),
        (("--resume", "folder.py"), "--resume: folder.py is not a run"),
        (("--resume", "damaged"), "config.json is damaged"),
        (("--resume", "foreign"), "no_such_field: no such field"),
        (("--resume", "no_reward"), "no_reward has no reward_fn.py"),
        (("--resume", "no_reward", "--steps", "5"), "leave out --steps"),
        (("ant_spin", "--resume", "no_reward"), "leave out REWARD"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_names_it(
    p2p: Cli, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    (tmp_path / "empty.py").write_text("\n")
    (tmp_path / "torn.json").write_text('{"seed": ')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "field.json").write_text('{"gama": 0.9}')
    for name, text in (
        ("damaged", '{"env_id": "An'),
        ("foreign", '{"no_such_field": 1}'),
        ("no_reward", "{}"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    outcome = p2p("train", *arguments, "--json")
    assert outcome.status == 2
    assert told in outcome.error
    assert told in outcome.json["error"]
    assert not (tmp_path / "runs").exists()


def test_a_session_given_as_a_run_is_told_the_run(p2p: Cli, trained_run: IterationRecord) -> None:
    outcome = p2p("train", "--resume", trained_run.path.parent)
    assert outcome.status == 2
    assert f"did you mean {trained_run.path}?" in outcome.error


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("float('inf')", "inf"),
        ("__import__('os')._exit(0)", "the process ended while the reward ran"),
    ],
)
def test_a_hostile_reward_is_refused_with_a_reason_and_trains_nothing(
    p2p: Cli, tmp_path: Path, config_file: Path, value: str, told: str
) -> None:
    (tmp_path / "reward.py").write_text(REWARD.format(value))
    outcome = p2p("train", "reward.py", "--config", config_file, "--json")
    assert outcome.status == 1, outcome.err
    assert told in outcome.json["error"]
    assert not list(tmp_path.glob("runs/*"))


def test_a_folder_that_cannot_be_written_is_named(p2p: Cli) -> None:
    outcome = p2p("train", "ant_spin", "--runs-dir", "/proc/version/runs")
    assert outcome.status == 1
    assert "/proc/version/runs" in outcome.error


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
@pytest.mark.process
def test_interrupted_it_says_how_to_resume_and_does(
    tmp_path: Path, config_file: Path, batched_reward: str, p2p: Cli, number: signal.Signals
) -> None:
    (tmp_path / "reward.py").write_text(batched_reward)
    process = start(
        "train", "reward.py", "--config", config_file, "--steps", "20480", "--no-videos",
        cwd=tmp_path,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        steps = 0
        while steps < 1024:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
            for folder in tmp_path.glob("runs/*/iter_1"):
                lines, _ = IterationRecord(folder).parse_scalars()
                steps = lines[-1]["global_step"] if lines else 0
        children = psutil.Process(process.pid).children()
        assert children
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert not any(child.is_running() for child in children)

    command = err.splitlines()[-1].partition("resume with: ")[2].split()
    assert command[:3] == ["p2p", "train", "--resume"]
    record = IterationRecord(tmp_path / command[3])
    assert record.derive_status() == "cancelled"
    outcome = p2p(*command[1:], "--no-videos", "--json")
    assert outcome.status == 0, outcome.err
    assert "resumed at step" in outcome.err
    assert outcome.json["summary"]["total_timesteps"] == 20480
    assert record.derive_status() == "completed"
    again = p2p(*command[1:], "--json")
    assert again.json == outcome.json
