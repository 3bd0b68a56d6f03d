"""A run on Ray: begun, continued, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ray
from processes import within
from small_run import learned_steps, new_run

from unstable.config import ConfigError
from unstable.run.start import start

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("cluster")]


@pytest.mark.slow
def test_ray_run_is_resumed(model: str, tmp_path: Path) -> None:
    config, folder = new_run(tmp_path / "run", model, mode="ray", updates=2)
    with within(240):
        result = start(config, folder, model, lambda _: None)
    assert result.step == 2
    assert result.checkpoint == str(folder.path / "checkpoints" / "iteration-2")
    assert (Path(result.checkpoint) / "adapter_model.safetensors").is_file()
    assert learned_steps(folder.path) == [1, 2]
    assert [path.name for path in folder.states()] == ["step-1", "step-2"]
    assert result.counts["games"] > 0
    assert [e["games"] for e in result.evaluations if e["ckpt_uid"] == "ckpt-2"] == [4]
    assert result.counts["failed"] == result.counts["actor_deaths"] == 0
    assert json.loads((folder.path / "status.json").read_text())["status"] == "completed"
    assert not ray.util.list_named_actors(all_namespaces=True)
    logs = {path.stem: path.read_text() for path in (folder.path / "logs").iterdir()}
    assert logs.keys() == {
        "run", "tracker", "buffer", "model_pool", "collector", "learner", "actor-0",
    }  # fmt: skip
    assert "update 2: loss" in logs["learner"]
    assert "completed after update 2" in logs["run"]
    assert "iteration-2" in logs["model_pool"]

    saved = json.loads((folder.states()[-1] / "collector.json").read_text())
    with within(240):
        result = start(config.model_copy(update={"updates": 3}), folder, model, lambda _: None)
    assert learned_steps(folder.path) == [1, 2, 3]
    # The counts go on; what is in the buffer may be enough for an update.
    assert result.counts["games"] >= saved["counts"]["games"] > 0
    pool = json.loads((folder.states()[-1] / "pool.json").read_text())
    assert [uid for uid, *_ in pool["models"]] == ["ckpt--1", "ckpt-1", "ckpt-2", "ckpt-3"]


@pytest.mark.slow
def test_ray_part_refusals_are_config_errors(model: str, tmp_path: Path) -> None:
    games = {"train": [["NoGame-v0", 2, "bare"]]}
    config, folder = new_run(tmp_path / "run", model, mode="ray", games=games)
    with within(120), pytest.raises(ConfigError, match="NoGame-v0"):
        start(config, folder, model, lambda _: None)
