"""The move in an answer."""

from __future__ import annotations

import pytest

from unstable.utils.templates import extract_action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (r"so \boxed{4}", "[4]"),
        (r"so \boxed{[4]}", "[4]"),
        (r"first \boxed{1}, no: \boxed{2}.", "[2]"),
        (r"\boxed{ Bid: 3, 4 }", "[Bid: 3, 4]"),
        ("\\boxed{\n[col 3]\n}", "[col 3]"),
        ("\\boxed{[Offer: 3 Sheep\n -> 2 Ore]}", "[Offer: 3 Sheep -> 2 Ore]"),
        (r"\boxed{\text{check}}", "[check]"),
        (r"\boxed{\boxed{\mathrm{fold}}}", "[fold]"),
        (r"\boxed{a{b}c{d{e}}}", "[a{b}c{d{e}}]"),
        (r"\boxed{\{4\}}", r"[\{4\}]"),
        (r"\boxed {7}", "[7]"),
        (r"} {} \boxed{5} {", "[5]"),
        (r"\boxed{6} and then \boxed{ cut o", "[6]"),
        (r"\frac{1}{2} \boxed{8} {x}", "[8]"),
    ],
)
def test_the_last_closed_box_is_the_move(text, action):
    assert extract_action(text) == (action, {"correct_answer_format": True})


@pytest.mark.parametrize(
    "text", ["", "[4]", "I play 4", r"\boxed{}", r"\boxed{  }", r"\boxed{4", r"boxed{4}"]
)
def test_an_answer_without_a_box_is_passed_on_as_it_is(text):
    assert extract_action(text) == (text, {"correct_answer_format": False})


@pytest.mark.parametrize("text", [r"\boxed{" * 20_000, "{" * 200_000, "}" * 200_000])
def test_nonsense_is_read_once(text):  # work that grows with its square would take minutes here
    assert not extract_action(text)[1]["correct_answer_format"]


def test_brackets_can_be_the_format():
    assert extract_action("I think [1], no [col\n 4] it is", "brackets")[0] == "[col 4]"
    assert not extract_action("four", "brackets")[1]["correct_answer_format"]
    assert not extract_action("[4", "brackets")[1]["correct_answer_format"]


def test_an_answer_can_be_the_move():
    assert extract_action(" [4]\n", "raw") == ("[4]", {"correct_answer_format": True})


@pytest.mark.parametrize(
    ("text", "action"), [("4", "[4]"), (" col 3\n", "[col 3]"), ("[4]", "[4]")]
)
def test_an_answer_can_be_the_move_without_its_brackets(text, action):
    assert extract_action(text, "bare") == (action, {"correct_answer_format": True})
    assert not extract_action(" \n", "bare")[1]["correct_answer_format"]
