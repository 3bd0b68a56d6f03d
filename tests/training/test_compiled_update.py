"""Compiled updates are kept: used again, shared safely, and never needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.records.iteration_record import IterationRecord
from p2p.settings import get_settings
from p2p.training import compiled_update as module
from p2p.training.checkpoints import load_checkpoint
from p2p.training.compiled_update import UpdateProgram, cache_variables, compiled_update
from p2p.training.runner import WORKER_ENVIRONMENT, RunOptions, run_training

COUNT_HITS = """
import json, sys
import jax
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
from p2p.training.training_loop import TrainContext, TrainingLoop
from p2p.config import TrainConfig
from p2p.training.ppo import PPOLearner
from pathlib import Path
config = TrainConfig.model_validate_json(sys.argv[1])
context = TrainContext(config, sys.argv[2], Path(sys.argv[3]), lambda _: None)
TrainingLoop(context, PPOLearner).run()
print(events.count("/jax/compilation_cache/cache_hits"))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("P2P_CACHE_DIR", str(tmp_path / "cache"))
    get_settings.cache_clear()
    yield tmp_path / "cache" / "updates"
    get_settings.cache_clear()


def program_of(config: TrainConfig) -> UpdateProgram:
    return UpdateProgram.from_config(config, 17, 6)


def test_an_update_is_compiled_once_and_kept_or_not_the_policy_is_the_same(
    cache: Path,
    tmp_path: Path,
    small_config: TrainConfig,
    batched_reward: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policies = []
    for name in ("kept", "not kept"):
        record = IterationRecord(tmp_path / name)
        run_training(small_config, batched_reward, record, options=RunOptions(videos=False))
        policies.append(load_checkpoint(record, 1024))
        monkeypatch.setenv("P2P_CACHE_DIR", "")
        get_settings.cache_clear()
    for name, tensor in policies[0].tensors.items():
        np.testing.assert_array_equal(tensor, policies[1].tensors[name])
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    (file,) = folder.iterdir()
    environment = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", **WORKER_ENVIRONMENT}
    other = {"seed": 7, "learning_rate": 1e-5, "gamma": 0.9, "clip_coef": 0.1, "ent_coef": 0.01}
    other_run = small_config.model_copy(update=other).model_dump_json()
    hits = subprocess.run(
        [sys.executable, "-c", COUNT_HITS, other_run, batched_reward, tmp_path],
        env={**environment, **cache_variables(folder)}, capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    assert int(hits.stdout.split()[-1]) >= 1
    assert list(folder.iterdir()) == [file]


def test_a_program_has_its_own_folder_and_old_ones_go(
    tmp_path: Path, small_config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_compile", lambda _, folder, __: folder.mkdir())
    monkeypatch.setattr(module, "KEPT", 2)
    program = program_of(small_config)
    others = [
        replace(program, stops_early=True),
        replace(program, num_envs=5),
        replace(program, epochs=7),
    ]
    folders = [compiled_update(each, tmp_path, {}) for each in (program, *others)]
    assert len(set(folders)) == 4
    assert [folder is not None and folder.exists() for folder in folders].count(True) == 2


def test_those_who_want_the_same_program_at_once_have_it_compiled_once(
    tmp_path: Path, small_config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Path] = []

    def count(_: UpdateProgram, folder: Path, __: object) -> None:
        compiled.append(folder)
        folder.mkdir()

    monkeypatch.setattr(module, "_compile", count)
    program = program_of(small_config)
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: compiled_update(program, tmp_path, {}), range(4)))
    assert folders == [compiled[0]] * 4
    assert len(compiled) == 1


def test_a_compiler_that_was_killed_or_left_nothing_leaves_nothing_to_use(
    tmp_path: Path, small_config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(small_config)
    monkeypatch.setattr(module, "COMPILER", "this")  # a module that writes no file
    (tmp_path / f".{program.key()}").mkdir()
    (tmp_path / f".{program.key()}" / "half").write_bytes(b"half a program")
    assert compiled_update(program, tmp_path, {}) is None
    assert not (tmp_path / program.key()).exists()
    monkeypatch.setattr(module, "COMPILER", "there.is.no.such.module")
    assert compiled_update(program, tmp_path, {}) is None


def test_a_cache_that_cannot_be_written_keeps_nobody_from_training(
    tmp_path: Path, small_config: TrainConfig
) -> None:
    (tmp_path / "file").write_text("")
    assert compiled_update(program_of(small_config), tmp_path / "file" / "updates", {}) is None
