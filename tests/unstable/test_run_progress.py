"""What a run says while it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from unstable.commands.train import TrainingBar
from unstable.evaluation import Evaluation
from unstable.run.progress import settled_evaluations


def row(uid: str, games: int, env_id: str = "A") -> dict[str, Any]:
    made = Evaluation(uid, env_id, "random-legal")
    for _ in range(games):
        made.add({0: 1.0, 1: -1.0}, 0)
    return made.summary()


def shown(*rows: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["ckpt_uid"], one["env_id"]) for one in settled_evaluations(rows, 10)]


def test_an_evaluation_is_told_when_it_is_whole_or_will_not_be() -> None:
    assert shown(row("ckpt--1", 3)) == []
    assert shown(row("ckpt--1", 10), row("ckpt-1", 2)) == [("ckpt--1", "A")]
    assert shown(row("ckpt--1", 4), row("ckpt-1", 2), row("ckpt-2", 10)) == [
        ("ckpt--1", "A"), ("ckpt-1", "A"), ("ckpt-2", "A"),
    ]  # fmt: skip
    other = [row("ckpt-1", 2), row("ckpt-1", 10, "B")]
    assert shown(*other) == [("ckpt-1", "B")]


def test_each_evaluation_is_printed_once_whatever_comes_between(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = TrainingBar()
    view.show_evaluations((row("ckpt-1", 10, "B"),))
    view.show_evaluations((row("ckpt-1", 10, "A"), row("ckpt-1", 10, "B")))
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["B", "A"]
