"""The command that a session shows asks for the same session again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Cli

from p2p.commands import run
from p2p.records.iteration_record import SessionRecord
from p2p.session.request import SessionRequest, command_line, loop_config
from p2p.session.start import start_session

CRITERION = {
    "id": "speed", "title": "Fast", "description": "it runs", "measure": "mean x velocity",
    "comparison": "at_least", "threshold": 2.0, "unit": "m/s", "weight": 1.0, "category": "task",
}  # fmt: skip
EVERY_OPTION: dict[str, Any] = {
    "env_id": "Hopper-v5", "model": "builtin", "vlm_model": "ollama:llava", "max_iterations": 2,
    "total_timesteps": 9000, "configs": 3, "seeds": 2, "pass_threshold": 0.7,
    "use_zoo_preset": True, "hp_tuning": False, "thinking_effort": "high", "use_code_judge": False,
    "review_reward": False, "review_judge": False, "judge_episodes": 4, "confirm_episodes": 6,
    "candidates": 1, "train_full": True, "trackers": ["wandb"],
    "refined_initial_frame": False, "motion_trail": True,
    "visual_criteria": ["the foot's toe points \"up\"", "no wobble"],
    "cores_per_run": 2, "budget_usd": 1.5, "max_minutes": 30.0, "videos": False,
    "settings": {"net_arch": [32, 16], "device": "cpu", "normalize_obs": False},
}  # fmt: skip


@pytest.mark.parametrize(
    "request_fields",
    [
        {"prompt": "run", "env_id": "Ant-v5"},
        {"prompt": "run  forward,\nit's \"fun\"", **EVERY_OPTION},
        {"prompt": "-v means: go back"},
        {"prompt": "run", "configs": 2, "settings": {"gamma": 0.97}},
        {"prompt": "run", "env_id": "Ant-v5", "seeds": (5,), "criteria": [CRITERION]},
        {"prompt": "run", "env_id": "Ant-v5", "seeds": (3, 1), "use_zoo_preset": True},
        {
            "prompt": "run",
            "settings": {
                "train": {"env_id": "Ant-v5", "num_envs": 4, "num_steps": 64, "seed": 9},
                "learning_rate": 1e-5, "trainer": "scheduled", "judge_every_checkpoint": True,
                "wait_for_cores": False,
                "configs": [{"config_id": "one", "params": {"gamma": 0.9}}],
            },
        },
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("vlm_of_the_settings", ["", "ollama:llava"])
def test_the_command_of_a_session_asks_for_the_same(
    p2p: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_fields: dict[str, Any],
    vlm_of_the_settings: str,
) -> None:
    first = start_session(SessionRequest.model_validate(request_fields), runs_dir=tmp_path / "a")
    asked = first.config.read()
    assert asked is not None
    monkeypatch.setenv("VLM_MODEL", vlm_of_the_settings)  # they may differ where it is typed
    monkeypatch.setattr(run, "_run_session", lambda *_, **__: None)
    program, *words = shlex.split(command_line(asked, first.path))
    typed = p2p(*words[:1], "--runs-dir", tmp_path / "b", *words[1:])
    assert (program, typed.status) == ("p2p", 0), typed.err
    (folder,) = (tmp_path / "b").iterdir()
    again = SessionRecord(folder).config.read()
    assert again is not None
    assert (again.prompt, again.criteria, again.loop) == (asked.prompt, asked.criteria, asked.loop)
    chosen = [loop_config("Ant-v5", **(each.options or {})) for each in (asked, again)]
    assert (asked.options is None, chosen[0]) == (again.options is None, chosen[1])


def test_every_option_is_tried_above() -> None:
    assert SessionRequest.model_fields.keys() - {"prompt", "criteria"} == set(EVERY_OPTION)


def test_what_must_be_seen_is_read_from_a_file(
    p2p: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_run_session", lambda *_, **__: None)
    (tmp_path / "seen.txt").write_text("the head stays up\n\n  no foot drags \n")
    flags = ("--visual-criteria", f"@{tmp_path}/seen.txt", "--visual-criteria", "it looks calm")
    seen = p2p("run", "run", "--runs-dir", tmp_path / "a", "--vlm", "ollama:llava", *flags)
    assert seen.status == 0, seen.err
    (folder,) = (tmp_path / "a").iterdir()
    config = SessionRecord(folder).config.read()
    assert config is not None
    assert config.loop.visual_criteria == ("the head stays up", "no foot drags", "it looks calm")
    absent = p2p("run", "run", "--runs-dir", tmp_path, "--visual-criteria", "@absent.txt")
    assert (absent.status, "--visual-criteria" in absent.err) == (2, True)
    blind = p2p("run", "run", "--runs-dir", tmp_path, *flags)
    assert (blind.status, "set vlm_model" in blind.err) == (2, True)
