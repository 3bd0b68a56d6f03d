"""Criteria as a file: what is written reads back, and what is wrong is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_client import criterion, hopper_intent

from p2p.agents.intent_elicitor import CriteriaError, parse_criteria, render_criteria, with_criteria

TWO = (
    criterion("fast", unit="m/s", threshold=2.5),
    criterion("calm", "efficiency", comparison="at_most", threshold=-0.1, description='a "b" \\n'),
)


def test_what_is_written_reads_back() -> None:
    text = render_criteria(TWO)
    assert "[[criteria]]" in text
    assert parse_criteria(text) == TWO


@given(st.text(min_size=1, max_size=80), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_number_reads_back(text: str, number: float) -> None:
    one = criterion("a", title=text, description=text, measure=text, threshold=number)
    assert parse_criteria(render_criteria([one])) == (one,)


def test_json_does_as_well() -> None:
    entries = [each.model_dump() for each in TWO]
    assert parse_criteria(json.dumps(entries)) == TWO
    assert parse_criteria(json.dumps({"criteria": entries})) == TWO


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": "much"}, "criterion 1 (fast): threshold: Input should be a valid number"),
        ({"weight": 0}, "criterion 1 (fast): weight: Input should be greater than 0"),
        ({"category": "speed"}, "criterion 1 (fast): category: "),
        ({"comparison": "more"}, "criterion 1 (fast): comparison: "),
        ({"colour": "red"}, "criterion 1 (fast): colour: no such field"),
        ({"id": "Fast!"}, "criterion 1 (Fast!): id: "),
        ({"category": "gait"}, "no criterion has the category `task`"),
        ({"id": "calm"}, "same id: calm"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], message: str) -> None:
    entries = [TWO[0].model_dump() | change, TWO[1].model_dump()]
    with pytest.raises(CriteriaError) as caught:
        parse_criteria(json.dumps(entries))
    assert message in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = render_criteria(TWO).replace("weight = 0.5", "weight = 7").replace('unit = "m/s"', "")
    with pytest.raises(CriteriaError) as caught:
        parse_criteria(text)
    assert str(caught.value).count("weight") == 2


@pytest.mark.parametrize("text", ["", "[[criteria]]\nid =", "[1, 2", "[]", "x = 1", "{}", "[3]"])
def test_what_is_no_list_of_criteria_is_refused(text: str) -> None:
    with pytest.raises(CriteriaError):
        parse_criteria(text)


def test_changed_criteria_are_the_users() -> None:
    intent = hopper_intent()
    proposed = intent.model_copy(update={"final": False})
    assert with_criteria(proposed, intent.criteria) == intent
    changed = with_criteria(intent, TWO)
    assert (changed.criteria, changed.author, changed.prompt) == (TWO, "user", intent.prompt)
