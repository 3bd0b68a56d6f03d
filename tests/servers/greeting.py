"""The smallest question there is, for tests of asking itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from p2p.inference.question import Question


class Greeting(BaseModel):
    """The answer."""

    text: str
    times: int


HELLO = {"text": "hello", "times": 1}


def question(**changes: Any) -> Question[Greeting]:
    """Ask for a greeting; any field of the question can be another."""
    fields: dict[str, Any] = {
        "role": "greeter",
        "instructions": "You greet.",
        "prompt": 'Please.\n<request role="greeter">\n{"name": "Ada"}\n</request>',
        "output": Greeting,
    }
    return Question(**{**fields, **changes})
