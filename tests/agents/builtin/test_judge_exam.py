"""A few questions of the judge exam (benchmarks/judge_exam.py): tricks that must not pass."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

TRICKS = (
    ("HalfCheetah: do a backflip", "trembles"),
    ("HalfCheetah: stand still", "drifts slowly"),
    ("HalfCheetah: run forward", "one burst, then lies on its back"),
    ("Hopper: keep hopping on the spot", "one jump, then stands"),
    ("Hopper: hop forward", "slides and bobs"),
    ("Walker2d: walk forward", "drags a leg"),
    (
        "Walker2d: hop forward on your right leg and keep the left foot off the ground",
        "toes up, bounding",
    ),
    ("Reacher: reach the target", "reaches, then leaves"),
    (
        "InvertedDoublePendulum: balance both poles without moving the cart away from the middle",
        "lower pole leans, upper is upright",
    ),
)
DONE = (
    ("HalfCheetah: do a backflip", "one flip"),
    ("Hopper: keep hopping on the spot", "hops"),
    ("Reacher: reach the target", "reaches"),
)


def examined(name: str, shown: str, folder: Path) -> Any:
    """The mark of one episode, by its label and by the judge."""
    exam = import_module("judge_exam")
    whole = next(prompt for prompt in exam.PROMPTS if prompt.name == name)
    prompt = replace(whole, shown={shown: whole.shown[shown]})
    [mark] = exam.judge(prompt, exam.episodes_of(prompt, folder))
    return mark


@pytest.mark.parametrize(("name", "shown"), TRICKS)
def test_a_trick_does_not_pass(name: str, shown: str, tmp_path: Path) -> None:
    mark = examined(name, shown, tmp_path)
    assert mark.answer.label == "bad"
    assert not mark.passed, mark.evidence


@pytest.mark.parametrize(("name", "shown"), DONE)
def test_what_was_asked_passes(name: str, shown: str, tmp_path: Path) -> None:
    mark = examined(name, shown, tmp_path)
    assert mark.answer.label == "good"
    assert mark.passed, mark.evidence
