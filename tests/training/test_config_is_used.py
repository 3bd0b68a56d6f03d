"""Every field of TrainConfig does something."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import p2p
from p2p.config import TrainConfig
from p2p.training import fast_trainer, sb3_trainer
from p2p.training.base_trainer import TrainContext

SOURCE = Path(p2p.__file__).parent
NOT_THE_TRAINERS = {"backend", "iteration_id", "judgment_select"}
"""Read by the worker, the executor and the runner."""


class Watched(TrainConfig):
    """Notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in TrainConfig.model_fields:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


@pytest.mark.parametrize(
    ("backend", "unused"),
    [(fast_trainer, {"device", "torch_deterministic"}), (sb3_trainer, set())],
)
def test_a_trainer_reads_every_field_that_is_for_it(
    tmp_path: Path, small_config: TrainConfig, batched_reward: str, backend: Any, unused: set[str]
) -> None:
    config = Watched(**small_config.model_dump())
    READ.clear()
    backend.train(TrainContext(config, batched_reward, tmp_path, lambda _: None))
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
