"""A whole run that takes seconds: its model, its configuration, its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unstable.config import RunConfig, make_config
from unstable.run import RunFolder
from unstable.tiny import WarmUp, make_tiny

SMALL: dict[str, Any] = {
    "name": "small",
    "updates": 3,
    "games_per_update": 6,
    "batch_size": 16,
    "workers": 8,
    "eval_workers": 2,
    "eval_games": 4,
    "eval_every": 2,
    "games": {
        "train": [["TicTacToe-v0-train", 2, "bare"]],
        "compact_views": True,
        "action_extraction": "bare",
    },
    "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 6},
    "engine": {"max_model_len": 64},
    "buffer": {"max_size": 64},
    "lora": {"lora_rank": 4},
    "learner": {"algorithm": "Reinforce", "learning_rate": 0.002},
}


def small_model(folder: Path) -> str:
    """The embedded model, hardly warmed up."""
    return str(make_tiny(folder, warm_up=WarmUp(games=10, steps=2)))


def new_run(folder: Path, model: str, **changes: Any) -> tuple[RunConfig, RunFolder]:
    """A run that has not begun; sections are changed field by field."""
    values = dict(SMALL, model=model)
    for name, change in changes.items():
        old = values.get(name)
        values[name] = {**old, **change} if isinstance(old, dict) else change
    config, run = make_config(values), RunFolder(folder)
    folder.mkdir(parents=True)
    run.write_config(config)
    return config, run


def learned_steps(run: Path) -> list[int]:
    """The learner's steps in a run's metrics."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [int(line["learner/step"]) for line in lines if "learner/step" in line]
