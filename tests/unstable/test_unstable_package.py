"""The package's public names, and the examples of the documents."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from learner_parts import make_model

from unstable.core import (
    AgentSpec,
    BaseAlgo,
    EpisodeResult,
    Opponent,
    PlaySpec,
    Step,
    TaskMeta,
    Trajectory,
)

DOCUMENTED = {
    Trajectory: "pid, obs, actions, extracted_actions, infos, final_rewards, num_turns,"
    " format_feedbacks",
    Step: "pid, obs, act, reward, env_id, step_info",
    Opponent: "uid, kind, path_or_name, rating, active",
    EpisodeResult: "traj, end_by_opponent_invalid, action_seq, final_rewards",
    PlaySpec: "env_id, num_players, player_id, agent_specs, seed",
    AgentSpec: "kind, model, prompt_template, action_extraction_fn",
    TaskMeta: "type, env_id, player_id, seed, ckpt_uid, opponent_uid",
}


@pytest.mark.parametrize("record", DOCUMENTED)
def test_records_have_the_documented_fields_first(record: Any):
    documented = DOCUMENTED[record].split(", ")
    assert [field.name for field in fields(record)][: len(documented)] == documented


def test_documented_custom_step_works():
    @dataclass
    class CuriosityStep:
        pid: int
        obs: str
        act: str
        reward: float
        curiosity: float

    class Curious(BaseAlgo):
        def prepare_batch(self, steps: Any) -> float:
            return sum(s.curiosity if isinstance(s, CuriosityStep) else 0.0 for s in steps)

        def update(self, steps: Any, scaling: float = 1.0) -> dict[str, float]:
            return {"curiosity": self.prepare_batch(steps) / scaling}

    algorithm = Curious()
    algorithm.initialize(None, None, "cpu", max_generation_len=8)
    steps = [CuriosityStep(0, "o", "a", 1.0, 0.5), Step(0, "", "", 0, "")]
    assert algorithm.update(steps, 2) == {"curiosity": 0.25}


def test_commands_without_extra_say_what_to_install(tmp_path):
    code = """
import contextlib, io, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "textarena", "trueskill", "transformers", "peft"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
from unstable.cli import main
for command in ("train", "resume .", "eval .", "play random-legal", "games", "tiny x", "terminal"):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main(command.split())
        except SystemExit as left:
            assert left.code == 2, (command, left.code)
    assert "pip install 'prompt2policy[selfplay]'" in said.getvalue(), (command, said.getvalue())
    assert len(said.getvalue().strip().splitlines()) == 1, (command, said.getvalue())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_import_is_lazy():
    code = (
        "import sys, unstable\n"
        "assert not {'ray', 'torch', 'transformers', 'textarena'} & set(sys.modules)\n"
        "unstable.reward_transformations.NormalizeRewards\n"
        "unstable.Step, unstable.BaseAlgo\n"
        "assert not {'ray', 'torch', 'numpy'} & set(sys.modules)\n"
        "assert {'Tracker', 'StepBuffer', 'ModelPool', 'Collector', 'algorithms'} <= "
        "set(dir(unstable))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_plain_parts_load_neither_ray_nor_torch():
    code = (
        "import sys\n"
        "import unstable.buffer, unstable.model_pool, unstable.trackers, unstable.games.players\n"
        "assert not {'ray', 'torch', 'transformers', 'textarena', 'trueskill'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_custom_algorithm_example_learns(tmp_path: Path) -> None:
    toy = make_model(tmp_path / "model", max_position_embeddings=512)
    done = subprocess.run(
        [sys.executable, EXAMPLES / "custom_algorithm.py", toy],
        capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    for name in ("BestHalf", "ImitateWinners"):
        losses = [float(loss) for loss in re.findall(rf"{name}: .* loss (\S+)", done.stdout)]
        assert len(losses) == 4
        assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.process
def test_quickstart_runs_without_gpu(tmp_path: Path, model: str) -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "quickstart.py", model],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        # At Ray's usual niceness its processes hardly run beside other tests, whose cluster is
        # not this one's.
        env={**os.environ, "RAY_worker_niceness": "0", "RAY_ADDRESS": "local"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    (run,) = (tmp_path / "outputs").glob("*/*/demo")
    assert (run / "checkpoints" / "iteration-3" / "adapter_model.safetensors").is_file()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["learner/step"] for m in metrics if "learner/step" in m] == [1.0, 2.0, 3.0]
    assert all(m["learner/num_steps"] == 64 for m in metrics if "learner/step" in m)
