"""What the agents are told: one text file for each role, filled in with a request.

A file has two parts, each begun by a line of its own: `=== instructions` (who is asked and by which
rules) and `=== prompt` (what is asked this time). The environment stands at the head of the
instructions: what several roles and all turns begin with, a provider need not read again.
`{{name}}` is a place to fill; `{{request}}` is where the request stands, as JSON in a block that a
program can find again. What is as a request has it by default is left out there. Facts of the live
environment come as sections, no longer than they need to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING

from p2p.contracts import FAILURE_TAGS
from p2p.inference.question import Media, Output, Question, Tool
from p2p.training.specs import spec_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from p2p.contracts import Record
    from p2p.training.env_spec import EnvSpec, ObservationEntry

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
    """Return what a role is asked, with its prompt filled in as `build` does."""
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
    return _fill(instructions, values), _fill(prompt, values)


def request_block(role: str, request: Record) -> str:
    """The request as JSON between two tags; no text inside of it can end the block."""
    # Inside of JSON a tag can only stand in a string, where this escape means the same.
    text = _TAG.sub(lambda _: r"\u003c", request.model_dump_json(exclude_defaults=True))
    return f'<request role="{role}">\n{text}\n</request>'


def _fill(text: str, values: dict[str, str]) -> str:
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


_CELL = re.compile(r"(\w+)\[(\d+), (\d+)\]")


def overview(spec: EnvSpec) -> str:
    """The robot, its time step, its episodes and what `info` tells of a step."""
    horizon = spec.max_episode_steps or "none"
    lines = [
        f"{spec.env_id}. {spec.description}.",
        f"One step is {spec.dt:g} s; horizon {horizon} steps; the episode {spec.termination}.",
        f"Gravity {spec.gravity[2]:g} m/s^2 along z; +z is up, +x is forward.{_fluid(spec)}",
        "info after a step:",
        *(f"- {name}: {meaning}" for name, meaning in spec.info_keys.items()),
    ]
    if not spec.info_keys:
        lines[-1] = "info after a step is empty."
    return "\n".join(lines)


def _fluid(spec: EnvSpec) -> str:
    density, viscosity = spec.fluid
    if not density and not viscosity:
        return ""
    return f" It moves in a fluid: density {density:g} kg/m^3, viscosity {viscosity:g} Pa s."


def body_facts(spec: EnvSpec) -> str:
    """Overview, named quantities, joints with the meaning of their sign, state and shapes."""
    parts = (
        overview(spec),
        spec_text.quantity_table(spec),
        spec_text.joint_semantics(spec),
        spec_text.body_info(spec),
    )
    return "\n\n".join(parts)


def all_facts(spec: EnvSpec) -> str:
    """Body facts, and the observation and the action index by index."""
    parts = (body_facts(spec), observation_table(spec), spec_text.action_table(spec))
    return "\n\n".join(parts)


def observation_table(spec: EnvSpec) -> str:
    """The observation, one line for each number; for arrays over all bodies, one for the array."""
    full = spec_text.observation_table(spec).splitlines()
    head, entries, tail = full[:2], full[2 : 2 + spec.obs_dim], full[2 + spec.obs_dim :]
    lines: list[str] = []
    for block in _blocks(spec.observation):
        start, stop = block[0].index, block[-1].index + 1
        text = _array_text(block)
        lines += entries[start:stop] if text is None else [text]
    return "\n".join((*head, *lines, *tail))


def _blocks(entries: Sequence[ObservationEntry]) -> Iterator[list[ObservationEntry]]:
    """Neighbours that come from cells of the same array."""

    def array(entry: ObservationEntry) -> str:
        cell = _CELL.fullmatch(entry.source or "")
        return cell[1] if cell else ""

    for name, block in groupby(entries, key=array):
        if name:
            yield list(block)
        else:
            yield from ([entry] for entry in block)


def _array_text(block: list[ObservationEntry]) -> str | None:
    """Return one line for a block of all columns of consecutive bodies, else None."""
    cells = [_CELL.fullmatch(entry.source or "") for entry in block]
    if len(block) < 12 or None in cells:
        return None
    places = [(int(cell[2]), int(cell[3])) for cell in cells if cell]
    first, width = places[0][0], max(column for _, column in places) + 1
    if places != [(first + i // width, i % width) for i in range(len(places))]:
        return None
    name, start = cells[0][1] if cells[0] else "", block[0].index
    meanings = (entry.description.partition(": ")[2] for entry in block[:width])
    units = (f" ({entry.unit})" if entry.unit else "" for entry in block[:width])
    columns = "; ".join(
        f"{k}: {text}{unit}" for k, (text, unit) in enumerate(zip(meanings, units, strict=True))
    )
    return (
        f"{start} to {block[-1].index} | {name}[b, k] at index {start} + {width} * (b - {first}) "
        f"+ k, for bodies b = {first} to {places[-1][0]} | k = {columns}"
    )


def tags_text() -> str:
    """The controlled list of failure tags, each with its meaning."""
    return "; ".join(f"{tag} ({meaning})" for tag, meaning in FAILURE_TAGS.items())


def listing(entries: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {meaning}" for name, meaning in entries.items())
