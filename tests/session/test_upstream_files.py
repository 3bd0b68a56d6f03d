"""Configurations and sessions of the public Prompt2Policy are read as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from session_process import run_here

from p2p.api.app import create_app
from p2p.commands import train
from p2p.config import TrainConfig
from p2p.contracts import SessionResult
from p2p.executor.__main__ import parser as executor_parser
from p2p.executor.__main__ import read_inputs
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.session_view import SessionView
from p2p.records.upstream import loop_fields, train_fields
from p2p.session import start
from p2p.session.request import command_line

CONFIG: dict[str, Any] = {
    "iteration_id": "", "seed": 3, "torch_deterministic": True, "device": "auto",
    "env_id": "Hopper-v5", "num_envs": 8, "max_episode_steps": 300, "side_info": False,
    "engine": "mujoco", "terminate_when_unhealthy": False, "total_timesteps": 500_000,
    "learning_rate": 1e-4, "num_steps": 1024, "gamma": 0.99, "gae_lambda": 0.95,
    "num_minibatches": 4, "update_epochs": 4, "clip_coef": 0.2, "norm_adv": True,
    "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
    "net_arch": [256, 256], "normalize_obs": True, "normalize_reward": True, "reward_clip": 10,
    "obs_clip": 10, "eval_interval": 0, "checkpoint_interval": 100_000, "num_evals": 4,
    "reward_term_avg_window": 25, "judgment_select": "last", "num_eval_rounds": 3,
    "num_eval_envs": 0, "parallel_eval": True, "trajectory_precision": 4, "trajectory_stride": 1,
    "batch_size": 8192, "minibatch_size": 2048, "num_iterations": 61,
}  # fmt: skip
SESSION: dict[str, Any] = {
    "prompt": "hop like a rabbit", "train": CONFIG, "configs": None, "seeds": [1, 2],
    "max_iterations": 7, "pass_threshold": 0.9, "model": "builtin",
    "vlm_model": "vllm-Qwen/Qwen3.5-27B", "thinking_effort": "max", "refined_initial_frame": True,
    "runs_dir": "runs", "cores_per_run": 0, "max_parallel": 0, "cores_pool": None,
    "gpu_pool": None, "no_cpu_affinity": False, "criteria_diagnosis": True,
    "motion_trail_dual": True, "hp_tuning": False, "use_code_judge": True, "review_reward": True,
    "review_judge": True, "judgment_select": "best", "use_zoo_preset": True,
    "elaborated_intent": "", "skip_vram_scaling": False,
}  # fmt: skip


def judgment(score: float, **others: Any) -> dict[str, Any]:
    passed = score >= 0.7
    words = {"diagnosis": "it stands", "failure_tags": [] if passed else ["no_motion"]}
    return {"intent_score": score, "passed": passed, **words, "evidence": ["a"], **others}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "session_20260101_120000_0123abcd"
    iterations = [
        {"iteration": n, "iteration_dir": f"/elsewhere/iter_{n}", "reward_code": "", "summary": {},
         "judgment": judgment(score, scoring_method="vlm", best_checkpoint="125000")}
        for n, score in ((1, 0.3), (2, 0.85))
    ]  # fmt: skip
    history = {
        "session_id": folder.name, "prompt": "hop like a rabbit", "env_id": "Hopper-v5",
        "status": "passed", "iterations": iterations, "best_iteration": 2, "best_score": 0.85,
        "pass_threshold": 0.7,
    }  # fmt: skip
    write(folder / "loop_history.json", history)
    write(folder / "session_config.json", SESSION)
    write(folder / "status.json", {"status": "passed", "updated_at": "2026-01-01T12:00:00+00:00"})
    for number in (1, 2):
        run = folder / f"iter_{number}" / "default_seed_1"
        write(run / "config.json", CONFIG)
        write(run / "judgment.json", judgment(0.8, rollout_judgments=[{"episode_idx": 0}]))
        spec = {"latex": "r", "terms": [{"name": "v", "description": "x"}]}
        write(run / "reward_spec.json", spec)
        write(run / "status.json", {"status": "completed", "updated_at": "2026-01-01T12:00:00Z"})
    return tmp_path / "runs"


def test_a_configuration_trains_the_same_and_what_is_left_out_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "config.json", CONFIG)
    (tmp_path / "reward.py").write_text("ENV_ID = 'Hopper-v5'\n")
    words = ["--config", str(tmp_path / "config.json"), "--reward-fn", str(tmp_path / "reward.py")]
    arguments = executor_parser().parse_args(words)
    config, _ = read_inputs(arguments)
    assert (config.seed, config.env_id, config.num_steps, config.net_arch) == (
        3, "Hopper-v5", 1024, (256, 256),
    )  # fmt: skip
    assert config.clip_vloss is TrainConfig().clip_vloss  # it does nothing there
    told = capsys.readouterr().err
    for name in ("batch_size", "parallel_eval", "clip_vloss"):
        assert name in told
    file = str(arguments.reward_fn)
    assert train.new_run(file, {}, config=arguments.config, preset=False)[0] == config


def test_our_own_files_keep_every_field_and_every_mistake() -> None:
    ours = {**TrainConfig(clip_vloss=True).model_dump(), "num_env": 3}
    assert train_fields(ours) == (ours, "")
    mistaken = {"max_iterations": 3, "motion": 1}
    assert loop_fields(mistaken) == (mistaken, "")


def test_a_session_begins_anew_from_its_session_config(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder,) = runs.iterdir()
    stored = folder / "session_config.json"
    words = ["--loop-config", str(stored), "--runs-dir", str(tmp_path / "new")]
    monkeypatch.setattr(start, "run", lambda *_, **__: SessionResult(status="passed"))
    assert run_here(*words) == 0
    record = SessionRecord(next((tmp_path / "new").iterdir()))
    asked = record.config.read()
    assert asked is not None
    assert (asked.prompt, asked.env_id) == ("hop like a rabbit", "Hopper-v5")
    loop = asked.loop
    assert (loop.seeds, loop.max_iterations, loop.hp_tuning) == ((1, 2), 7, False)
    assert (loop.train.judgment_select, loop.train.num_steps) == ("best", 1024)
    assert (loop.refined_initial_frame, loop.motion_trail) == (True, True)
    assert "criteria_diagnosis" in capsys.readouterr().err
    assert "Hopper-v5" in command_line(asked, record.path)


def test_a_session_shows_its_scores(runs: Path) -> None:
    (folder,) = runs.iterdir()
    view = SessionView(SessionRecord(folder))
    assert (view.prompt, view.env_id, view.status, view.best_score) == (
        "hop like a rabbit", "Hopper-v5", "passed", 0.85,
    )  # fmt: skip
    assert [each.score for each in view.iterations.values()] == [0.3, 0.85]
    second = view.iterations[2]
    assert second.judgment is not None
    assert (second.judgment.strategy, second.judgment.step) == ("vlm", 125_000)
    assert second.runs[0].judgment is not None
    assert second.runs[0].judgment.intent_score == 0.8
    spec = IterationRecord(second.runs[0].record.path).read_reward_spec()
    assert spec.terms == {"v": "x"}


def test_a_pass_with_a_failure_tag_is_shown_as_none(runs: Path) -> None:
    (folder,) = runs.iterdir()
    path = folder / "loop_history.json"
    path.write_text(path.read_text().replace('"failure_tags": []', '"failure_tags": ["fell"]'))
    view = SessionView(SessionRecord(folder))
    assert view.iterations[2].judgment is not None
    assert not view.iterations[2].judgment.passed
    assert (view.status, view.best_score) == ("max_iterations", 0.85)


def test_a_step_of_thousands_of_digits_is_no_step(runs: Path) -> None:
    (folder,) = runs.iterdir()
    path = folder / "loop_history.json"
    path.write_text(path.read_text().replace("125000", "1" * 5000))
    second = SessionView(SessionRecord(folder)).iterations[2]
    assert second.judgment is not None
    assert (second.judgment.intent_score, second.judgment.step) == (0.85, None)


def test_the_page_lists_and_shows_it(runs: Path) -> None:
    with TestClient(create_app(runs, token="t" * 32), base_url="http://localhost") as client:
        client.headers["Authorization"] = f"Bearer {'t' * 32}"
        (row,) = client.get("/api/sessions").json()
        assert (row["prompt"], row["best_score"], row["status"]) == (
            "hop like a rabbit", 0.85, "passed",
        )  # fmt: skip
        there = f"/api/sessions/{row['session_id']}"
        assert client.get(there).json()["best_iteration"] == 2
        iterations = client.get(f"{there}/loop-iterations").json()
        assert [each["intent_score"] for each in iterations] == [0.3, 0.85]
        assert iterations[1]["runs"][0]["score"] == 0.8
