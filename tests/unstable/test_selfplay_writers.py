"""Metrics on their way to trackers that are not always installed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from unstable.trackers import Tracker
from unstable.writers import WRITERS, MissingExtraError, truncate_lines


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_writer_that_is_not_installed_names_its_extra(tmp_path, monkeypatch, name):
    real = importlib.import_module

    def without(module, *rest):
        if module == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(module, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtraError, match=rf"pip install 'prompt2policy\[{name}\]'"):
        WRITERS[name](tmp_path, "project", "run", None)


def test_wandb_gets_the_metrics_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    made = Tracker("demo", wandb_project="UB", run_dir=tmp_path / "run")
    assert made.use_wandb
    made.log_learner({"step": 1, "loss": 0.5})
    made.close()
    assert made.write_failures == 0
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_trackio_gets_the_metrics(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    made = Tracker("demo", trackio_project="UB", run_dir=tmp_path / "run")
    made.log_learner({"step": 1, "loss": 0.5})
    made.close()
    assert made.write_failures == 0


def test_tensorboard_needs_no_deep_learning_library(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from unstable.writers import WRITERS\n"
        "heavy = {'torch', 'tensorflow', 'jax', 'ray'}\n"
        f"WRITERS['tensorboard'](Path({str(tmp_path)!r}), 'p', 'run', None)\n"
        "assert not heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torn_and_foreign_lines_are_dropped_and_others_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = [json.dumps({"step": step, "x": 1}) + "\n" for step in range(4)]
    path.write_text("".join([*good[:2], "foreign\n", *good[2:], '{"step": 4, "to']))
    truncate_lines(path, None)
    assert path.read_text() == "".join(good)
    truncate_lines(path, 1)
    assert path.read_text() == "".join(good[:2])
