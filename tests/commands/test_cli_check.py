"""`p2p check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import Cli

HEAD = "def reward_fn(obs, action, next_obs, info):\n"


def test_a_built_in_reward_is_fit_and_measured(p2p: Cli) -> None:
    report = p2p("check", "hopper_stand", "--json").json
    assert report["ok"]
    assert report["env_id"] == "Hopper-v5"
    assert report["result"]["us_per_step"] > 0
    text = p2p("check", "hopper_stand")
    assert text.status == 0
    assert "µs per environment step" in text.out
    assert text.out.rstrip().endswith("fit to train on")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def reward_fn(obs action):\n    return 1\n", "syntax error"),
        (HEAD + "    return float('nan'), {}\n", "nan"),
        (HEAD + "    return len(open('/etc/hostname').read()), {}\n", "Permission"),
        (HEAD + "    import socket; socket.create_connection(('1.1.1.1', 53))\n", "reward.py:2"),
        (HEAD + "    raise SystemExit\n", "reward.py:2"),
        (HEAD + "    import os; os.kill(os.getppid(), 9)\n", "reward.py:2"),
        ("x = 1\n", "reward_fn"),
    ],
)
def test_a_reward_that_cannot_be_trained_on_is_told_where(
    p2p: Cli, tmp_path: Path, code: str, told: str
) -> None:
    (tmp_path / "reward.py").write_text(code)
    outcome = p2p("check", "reward.py", "--env", "Swimmer-v5")
    assert outcome.status == 1
    assert told in outcome.out
    assert "Traceback" not in outcome.err
    assert outcome.out.rstrip().endswith("not fit to train on")


def test_the_environment_is_the_one_that_the_file_names(p2p: Cli, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text('ENV_ID = "Reacher-v5"\n' + HEAD + "    return 1.0, {}\n")
    assert p2p("check", "reward.py", "--json").json["env_id"] == "Reacher-v5"
    assert p2p("check", "reward.py", "-e", "Hopper-v5", "--json").json["env_id"] == "Hopper-v5"


def test_side_information_is_given_unless_refused(p2p: Cli, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(
        HEAD + "    return float(info['mj_data'].qpos[0]), {'x': float(info['mj_data'].qpos[0])}\n"
    )
    assert p2p("check", "reward.py", "-e", "Swimmer-v5").status == 0
    assert p2p("check", "reward.py", "-e", "Swimmer-v5", "--no-side-info").status == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere.py",), "nowhere.py does not exist"),
        (("hopper_stnad",), "did you mean hopper_stand"),
        (("hopper_stnad",), "or give a session (its name, the start of it, `last`, `best`"),
        (("last",), "no sessions in"),
        (("hopper_stand", "--env", "Hoper-v5"), "did you mean Hopper-v5"),
    ],
)
def test_bad_arguments(p2p: Cli, arguments: tuple[str, ...], told: str) -> None:
    outcome = p2p("check", *arguments)
    assert outcome.status == 2
    assert told in outcome.error


def test_going_without_the_sandbox_is_refused_where_there_is_one(p2p: Cli) -> None:
    shown = p2p("check", "halfcheetah_run_forward", "--unsafe-local")
    assert shown.status == 2
    assert "--unsafe-local: this kernel has a sandbox" in " ".join(shown.err.split())
