"""What tools share: which errors are text and which end the question, and text that can be sent."""

from __future__ import annotations

import asyncio

import pytest

from p2p.inference.agent_tools import ToolBudget, truncate_text, wrap_tool
from p2p.inference.question import AskingCancelled, BudgetExhausted, RateLimited


def call(tool, budget, *args):
    return asyncio.run(wrap_tool(tool, budget)(*args))


def test_wrap_tool_reports_errors_and_passes_fatal_ones():
    def failing(error):
        def tool() -> str:
            raise error

        return tool

    assert "RateLimited: later" in call(failing(RateLimited("later")), ToolBudget(1))
    for error in (BudgetExhausted("none"), AskingCancelled("stop"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            call(failing(error), ToolBudget(1))


def test_halves_of_characters_can_be_sent():
    assert truncate_text("\ud800ok").endswith("ok")
    truncate_text("\ud800ok").encode()
