"""Every field of TrainConfig does something."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import p2p
from p2p.config import ALGORITHM_FIELDS, TrainConfig
from p2p.training.ppo import PPOLearner
from p2p.training.sac import SACLearner
from p2p.training.sb3_trainer import SB3Learner
from p2p.training.training_loop import TrainContext, TrainingLoop

SOURCE = Path(p2p.__file__).parent
NOT_THE_TRAINERS = {"backend", "iteration_id", "judgment_select"}
"""Read by the worker, the executor and the runner."""

SB3_ONLY = {"device", "torch_deterministic"}
SAC_ONLY, PPO_ONLY = ALGORITHM_FIELDS["sac"], ALGORITHM_FIELDS["ppo"]


class Watched(TrainConfig):
    """Notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in TrainConfig.model_fields:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


@pytest.mark.parametrize(
    ("learner", "algorithm", "unused"),
    [
        (PPOLearner, "ppo", SB3_ONLY | SAC_ONLY),
        (SB3Learner, "ppo", SAC_ONLY),
        (SACLearner, "sac", SB3_ONLY | PPO_ONLY),
    ],
)
def test_a_learner_reads_every_field_that_is_for_it(
    tmp_path: Path,
    small_config: TrainConfig,
    batched_reward: str,
    learner: Any,
    algorithm: str,
    unused: set[str],
) -> None:
    config = Watched(**small_config.with_updates(algorithm=algorithm).model_dump())
    READ.clear()
    TrainingLoop(TrainContext(config, batched_reward, tmp_path, lambda _: None), learner).run()
    assert set(TrainConfig.model_fields) - READ == NOT_THE_TRAINERS | unused


def test_what_the_trainers_do_not_read_others_do() -> None:
    read = {
        node.attr
        for path in SOURCE.rglob("*.py")
        if path.name != "config.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name | ast.Attribute)
        and "config" in ast.unparse(node.value)
    }
    assert read >= NOT_THE_TRAINERS
