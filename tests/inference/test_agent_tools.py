"""What tools share: a budget in calls, errors as text, results that are not too long."""

from __future__ import annotations

import asyncio

import pytest

from p2p.inference.agent_tools import ToolBudget, offered, truncated
from p2p.inference.question import AskingCancelled, BudgetExhausted, RateLimited


def call(tool, budget, *args):
    return asyncio.run(offered(tool, budget)(*args))


def test_every_call_counts_over_all_tools():
    budget = ToolBudget(2)
    assert "[tool calls left: 1]" in call(lambda: "a", budget)
    assert "[tool calls left: 0]" in call(lambda: "b", budget)
    ran = []
    assert "used up" in call(lambda: ran.append(1), budget)
    assert not ran


def test_a_failed_question_inside_a_tool_is_told_but_the_end_of_everything_travels():
    def failing(error):
        def tool() -> str:
            raise error

        return tool

    assert "RateLimited: later" in call(failing(RateLimited("later")), ToolBudget(1))
    for error in (BudgetExhausted("none"), AskingCancelled("stop"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            call(failing(error), ToolBudget(1))


def test_long_text_keeps_its_beginning_and_its_end():
    text = truncated("start" + "x" * 5000 + "end", 300)
    assert text.startswith("start")
    assert text.endswith("end")
    assert "characters left out" in text
    assert len(text) < 400


def test_halves_of_characters_can_be_sent():
    assert truncated("\ud800ok").endswith("ok")
    truncated("\ud800ok").encode()
