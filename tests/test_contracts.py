"""Records read back as they were written, and refuse what they do not know."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from p2p.contracts import (
    Criterion,
    CriterionScore,
    Intent,
    JudgmentResult,
    TrainScalars,
)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, 5e-324])
def test_numbers_that_json_does_not_have_survive_it(value):
    score = CriterionScore(id="a", score=None, value=value)
    text = JudgmentResult(intent_score=None, criteria=(score,)).model_dump_json()
    json.loads(text, parse_constant=pytest.fail)  # plain JSON, without NaN
    again = JudgmentResult.model_validate_json(text).criteria[0].value
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    ("ids", "category", "complaint"),
    [(("a", "a"), "task", "same id: a"), (("a",), "gait", "nothing is asked for")],
)
def test_criteria_have_names_of_their_own_and_one_is_the_task(ids, category, complaint):
    criteria = [
        Criterion(
            id=name, title="t", description="", measure="m", comparison="at_least", threshold=1,
            weight=1, category=category,
        )
        for name in ids
    ]  # fmt: skip
    with pytest.raises(ValidationError, match=complaint):
        Intent(prompt="run", env_id="Ant-v5", criteria=criteria, author="user")


def test_a_metric_cannot_pass_for_the_step():
    for name in ("type", "global_step", "iteration"):
        with pytest.raises(ValidationError, match="not metrics"):
            TrainScalars(global_step=1, iteration=1, values={name: 0.0})
    line = TrainScalars(global_step=5, iteration=2, values={"entropy": -1.0}).line()
    assert line == {"type": "train", "global_step": 5, "iteration": 2, "entropy": -1.0}


def test_a_pass_with_a_failure_tag_cannot_be_made() -> None:
    with pytest.raises(ValidationError, match="passed, with the failure tags fell"):
        JudgmentResult(intent_score=0.9, passed=True, failure_tags=("fell",))


def test_a_stored_pass_with_a_failure_tag_is_read_as_none() -> None:
    stored = '{"intent_score": 0.9, "passed": true, "failure_tags": ["fell"]}'
    read = JudgmentResult.model_validate_json(stored)
    assert (read.passed, read.failure_tags) == (False, ("fell",))


def test_an_event_reads_as_what_must_not_happen() -> None:
    fields = {"id": "a", "title": "Foot stays up", "description": "", "measure": "touches",
              "weight": 1.0, "category": "gait"}  # fmt: skip
    event = {"comparison": "at_most", "event": "foot touched the ground"}
    demands = [
        Criterion(**fields, **event, threshold=0.0).demand,
        Criterion(**fields, **event, threshold=2.0).demand,
        Criterion(**fields, comparison="at_least", threshold=0.3, unit="m").demand,
    ]
    assert demands == [
        "never: foot touched the ground",
        "at most 2 times: foot touched the ground",
        "Foot stays up ≥ 0.3 m",
    ]
