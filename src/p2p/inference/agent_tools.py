"""What tools that a model may call have in common: a budget, errors as text, short results."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from p2p.inference.question import (
    AskingCancelled,
    AuthenticationFailed,
    BudgetExhausted,
    NotUnderstood,
)
from p2p.settings import redact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from p2p.inference.question import Tool

LONGEST_RESULT = 12_000
"""Characters; the model is told how many were left out."""

STOPS_EVERYTHING = (AskingCancelled, AuthenticationFailed, BudgetExhausted, NotUnderstood)
"""Failures of a question inside a tool that no other way of asking can go round."""


class ToolBudget:
    """How many calls are left, over all tools of one question."""

    def __init__(self, calls: int) -> None:
        self.calls = self.left = calls


def truncate_text(text: str, limit: int = LONGEST_RESULT) -> str:
    """The text, or its beginning and end with a note of what is missing between them."""
    text = text.encode("utf-8", errors="replace").decode()
    if len(text) <= limit:
        return text
    head, tail = 2 * limit // 3, limit // 3
    missing = len(text) - head - tail
    return f"{text[:head]}\n... ({missing} characters left out) ...\n{text[len(text) - tail :]}"


def wrap_tool(tool: Tool, budget: ToolBudget) -> Callable[..., Awaitable[str]]:
    """The tool as it is given to a model: same name, arguments and description.

    It runs in the thread that talks to the model, one call after the other.
    """

    @functools.wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> str:
        if budget.left <= 0:
            return (
                f"Not done: all {budget.calls} tool calls are used up. Give your answer now, from "
                "what you know."
            )
        budget.left -= 1
        return f"{_call_tool(tool, args, kwargs)}\n\n[tool calls left: {budget.left}]"

    # The library asks for hints by name; a wrapped function would give it the tool's own module.
    call.__annotations__ = inspect.get_annotations(tool, eval_str=True)
    return call


def _call_tool(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    try:
        return truncate_text(redact(str(tool(*args, **kwargs))))
    except STOPS_EVERYTHING:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a tool does, the model hears of it and goes on
        return truncate_text(redact(f"The tool failed: {type(error).__name__}: {error}"))
