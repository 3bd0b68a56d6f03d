"""Self-play from Python: `unstable.train`, and what a run offers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from small_run import SMALL

import unstable
from unstable.config import ConfigError, RunConfig, make_config
from unstable.console import describe_plan
from unstable.dashboard import make_view
from unstable.dashboard.drawing import draw_run
from unstable.engines import EngineError, adapters
from unstable.interface import Run
from unstable.run.progress import Progress
from unstable.utils.interrupts import interrupt as raise_interrupt


@pytest.fixture(scope="module")
def values(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("outputs")
    return {**SMALL, "model": model, "updates": 1, "output_dir": str(folder)}


@pytest.fixture(scope="module")
def run(values: dict[str, Any]) -> Run:
    return unstable.train(values, quiet=True)


def test_train_returns_a_completed_run(run: Run) -> None:
    assert (run.status, run.step) == ("completed", 1)
    assert run.checkpoint.name == "iteration-1"
    assert [row["ckpt_uid"] for row in run.evaluations] == ["ckpt--1", "ckpt-1"]
    kinds = [game["kind"] for game in run.games]
    assert (kinds.count("train"), kinds.count("eval")) == (6, 8)
    assert unstable.load(run.path).config == run.config


def test_run_evaluate_repeats_its_own_numbers(run: Run) -> None:
    (row,) = run.evaluate(quiet=True)
    own = run.evaluations[-1]
    assert {name: row[name] for name in own} == own


@pytest.mark.parametrize("merge", [True, False])
def test_export_writes_a_loadable_model(run: Run, model: str, tmp_path: Path, merge: bool) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def load(folder: Any) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder)

    folder = run.export(tmp_path / "exported", merge=merge)
    expected = PeftModel.from_pretrained(load(model), str(run.checkpoint))
    exported = load(folder) if merge else PeftModel.from_pretrained(load(model), str(folder))
    tokens = torch.tensor([[48, 49, 50]])
    torch.testing.assert_close(
        exported(tokens).logits, expected(tokens).logits, atol=1e-5, rtol=1e-4
    )
    assert "won 0." in (folder / "README.md").read_text()
    with pytest.raises(FileExistsError, match="new folder"):
        run.export(folder)


def test_train_works_in_a_running_event_loop(values: dict[str, Any]) -> None:
    async def train() -> Run:
        return unstable.train(values, quiet=True, updates=2, eval_games=0)

    assert asyncio.run(train()).step == 2


def test_train_works_in_a_thread(values: dict[str, Any]) -> None:
    steps: list[int] = []

    def train() -> None:
        steps.append(unstable.train(values, quiet=True, eval_games=0).step)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(120)
    assert steps == [1]


@pytest.mark.parametrize("where", ["in a loop", "by itself", "in code that loses it"])
def test_interrupted_train_leaves_a_resumable_run(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    sent: list[int] = []
    is_lost = where.endswith("loses it")
    loses = pytest.raises(KeyboardInterrupt) if is_lost else nullcontext()

    def interrupt(_: Any, progress: Progress) -> None:
        if progress.step == 1 and not sent:
            sent.append(1)
            with loses:
                os.kill(os.getpid(), signal.SIGTERM if is_lost else signal.SIGINT)
                time.sleep(0)

    def train() -> Run:
        return unstable.train(values, quiet=True, updates=50, output_dir=str(tmp_path))

    async def train_in_loop() -> Run:
        return train()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the suite may ignore it
    on_term = signal.signal(signal.SIGTERM, raise_interrupt)  # as the command line does
    with monkeypatch.context() as patch:
        patch.setattr("unstable.console.TrainingBar.__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(train_in_loop()) if where == "in a loop" else train()
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, on_term)
    (path,) = tmp_path.glob("*/*/small")
    run = unstable.load(path)
    assert run.status == "cancelled"
    step = run.step
    assert 1 <= step < 50
    assert run.resume(step + 1, quiet=True).step == step + 1


def test_a_game_that_fails_of_an_interrupt_is_not_reported(
    values: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    read, sent = adapters._read_files, []

    def lose(folder: str) -> Any:
        if "iteration-1" in folder and not sent:
            sent.append(1)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            raise EngineError(f"cannot read the adapter at {folder}")
        return read(folder)

    on_term = signal.signal(signal.SIGTERM, raise_interrupt)
    monkeypatch.setattr(adapters, "_read_files", lose)
    try:
        with pytest.raises(KeyboardInterrupt):
            unstable.train(values, quiet=True, updates=50, output_dir=str(tmp_path))
    finally:
        signal.signal(signal.SIGTERM, on_term)
    assert sent
    assert "failed game" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [({"updatess": 3}, "updatess: no such field"), ({"game": "NoGame-v0"}, "NoGame-v0")],
)
def test_refused_train_leaves_no_folder(
    values: dict[str, Any], tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        unstable.train(values, quiet=True, output_dir=str(tmp_path / "out"), **options)
    assert not list(tmp_path.iterdir())


def test_load_without_a_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no run below outputs"):
        unstable.load()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        unstable.load(tmp_path)


def test_overrides_change_sections_field_by_field(values: dict[str, Any]) -> None:
    from unstable.interface import read_config

    for config in (values, make_config(values)):
        changed = read_config(config, {"updates": 7, "learner": {"learning_rate": 0.5}})
        assert (changed.updates, changed.learner.learning_rate) == (7, 0.5)
        assert changed.learner.algorithm == "Reinforce"
        assert changed.games == make_config(values).games


def test_run_is_shown_as_html_with_escaped_text(run: Run) -> None:
    assert "win rate 0." in run._repr_html_()
    row = {**run.evaluations[-1], "opponent": "<script>"}
    html = draw_run(make_view({"run_name": "<b>", "evaluation": [row]}))
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_plan_names_model_games_and_time() -> None:
    plan = describe_plan(RunConfig(updates=80, games_per_update=384))
    assert plan.startswith("training tiny on TicTacToe-v0-train: 80 updates, LoRA adapters")
    assert plan.endswith("about 9 min on one CPU core")
    assert "after the first update" in describe_plan(RunConfig(model="Qwen/Qwen3-1.7B-Base"))
