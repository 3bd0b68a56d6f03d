"""What the agents are told: one text file for each role, filled in with a request.

A file has two parts, each begun by a line of its own: `=== instructions` (who is asked and by which
rules) and `=== prompt` (what is asked this time). The environment stands at the head of the
instructions: what several roles and all turns begin with, a provider need not read again.
`{{name}}` is a place to fill; `{{request}}` is where the request stands, as JSON in a block that a
program can find again. What is as a request has it by default is left out there.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from p2p.inference.question import Media, Output, Question, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from p2p.contracts import Record

AUTHORS = frozenset({"reward_author", "judge_author", "revise_agent"})
"""The roles that think before they answer: hours of training depend on what they write."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_TAG = re.compile(r"<(?=/?request\b)", re.IGNORECASE)


class PromptError(ValueError):
    """A prompt file and what it is filled with do not fit: a mistake in this package."""


def question(
    role: str,
    request: Record,
    output: type[Output],
    sections: Mapping[str, str],
    *,
    media: Sequence[str | Media] = (),
    tools: Sequence[Tool] = (),
    max_tool_calls: int = 0,
    check: Callable[[Output], None] = lambda _: None,
) -> Question[Output]:
    """What a role is asked, with its prompt filled in as `build` does."""
    instructions, prompt = build(role, request, **sections)
    return Question(
        role=role,
        instructions=instructions,
        prompt=(prompt, *media) if media else prompt,
        output=output,
        tools=tools,
        max_tool_calls=max_tool_calls,
        check=check,
        thinks=role in AUTHORS,
    )


def build(role: str, request: Record, **sections: str) -> tuple[str, str]:
    """The instructions and the prompt for a role, with its request and further sections filled in.

    Raises PromptError if there is no file for the role, or its places and `sections` differ.
    """
    instructions, prompt = _parts(role)
    values = {name: _TAG.sub("&lt;", text.strip()) for name, text in sections.items()}
    values["request"] = request_block(role, request)
    places = _PLACE.findall(instructions + prompt)
    if places.count("request") != 1:
        raise PromptError(f"{role}.md has {places.count('request')} places for the request, not 1")
    if set(places) != set(values):
        differ = ", ".join(sorted(set(places) ^ set(values)))
        raise PromptError(f"{role}.md: places and sections differ in {differ}")
    return _filled(instructions, values), _filled(prompt, values)


def request_block(role: str, request: Record) -> str:
    """The request as JSON between two tags; no text inside of it can end the block."""
    # Inside of JSON a tag can only stand in a string, where this escape means the same.
    text = _TAG.sub(lambda _: r"\u003c", request.model_dump_json(exclude_defaults=True))
    return f'<request role="{role}">\n{text}\n</request>'


def _filled(text: str, values: dict[str, str]) -> str:
    # In one pass: what is filled in is never searched for places.
    return _PLACE.sub(lambda place: values[place[1]], text).strip()


@cache
def _parts(role: str) -> tuple[str, str]:
    file = files(__name__) / f"{role}.md"
    if not file.is_file():
        raise PromptError(f"no prompt is written for the role {role!r}")
    match re.split(r"^=== *(instructions|prompt) *\n", file.read_text("utf-8"), flags=re.MULTILINE):
        case ["", "instructions", instructions, "prompt", prompt]:
            return instructions, prompt
    raise PromptError(f"{role}.md is not `=== instructions`, then `=== prompt`")
