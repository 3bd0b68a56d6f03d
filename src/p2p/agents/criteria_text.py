"""Criteria as a file that a person can edit: written as TOML, read as TOML or JSON."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from itertools import count
from typing import Any

import tomli_w
from pydantic import ValidationError

from p2p.contracts import Criterion, Intent, SessionConfig, describe_errors

_HEAD = """\
# What the policy is judged by. Change, delete or add [[criteria]]; at least one is a `task`.
# comparison: at_least or at_most. weight: above 0, at most 1.
# event: what must not happen, in the past tense ("fell"): it is counted, in the worst episode.
# category: task, gait, posture, dynamics, stability or efficiency.
# soft_reason: why missing it does not keep a policy from passing; "" where it must be met.
"""


class CriteriaError(ValueError):
    """The text is no list of criteria; the message names each field that is wrong."""


def render_criteria(criteria: Sequence[Criterion]) -> str:
    """The criteria as TOML, with a word on how to edit them."""
    tables = [criterion.model_dump() for criterion in criteria]
    return f"{_HEAD}\n{tomli_w.dumps({'criteria': tables})}"


def parse_criteria(text: str) -> tuple[Criterion, ...]:
    """Read criteria back, from TOML, or from JSON: a list, or an object with the key `criteria`.

    A session's own session.json and intent.json are such objects.
    Raises CriteriaError.
    """
    try:
        document = json.loads(text) if text.lstrip()[:1] in ("{", "[") else tomllib.loads(text)
    # A TOML file may begin with [[criteria]] as a JSON list may begin with [.
    except json.JSONDecodeError as error:
        document = _toml(text, str(error))
    except tomllib.TOMLDecodeError as error:
        raise CriteriaError(f"neither TOML nor JSON: {error}") from None
    entries = document if isinstance(document, list) else document.get("criteria")
    if not isinstance(entries, list) or not entries:
        raise CriteriaError("no criteria: expected [[criteria]] tables, or a JSON list")
    known = {*Intent.model_fields, *SessionConfig.model_fields}
    if extra := set(document) - known if isinstance(document, dict) else set():
        raise CriteriaError(f"unknown keys beside `criteria`: {', '.join(sorted(extra))}")
    problems: list[str] = []
    criteria = [_criterion(number, entry, problems) for number, entry in enumerate(entries, 1)]
    if problems:
        raise CriteriaError("\n".join(problems))
    return _checked(tuple(c for c in criteria if c is not None))


def with_criteria(intent: Intent, criteria: Sequence[Criterion]) -> Intent:
    """The intent with a person's criteria in place of the proposed ones."""
    if tuple(criteria) == intent.criteria:
        return intent
    changed = intent.model_dump() | {
        "criteria": [criterion.model_dump() for criterion in criteria],
        "unused_words": (),  # whoever writes the criteria says what the prompt means
        "author": "user",
    }
    return Intent.model_validate(changed)


def with_visual_criteria(intent: Intent, texts: Sequence[str]) -> Intent:
    """The intent with what must be seen as criteria of their own; one that is there is not added.

    Raises ValueError where it would have too many.
    """
    there = {criterion.description for criterion in intent.criteria if criterion.visual}
    ids = {criterion.id for criterion in intent.criteria}
    free = (n for n in count(1) if f"seen_{n}" not in ids)
    added = [Criterion.seen(next(free), text) for text in texts if text not in there]
    criteria = [*intent.criteria, *added]
    return Intent.model_validate(intent.model_dump() | {"criteria": criteria})


def _toml(text: str, json_error: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CriteriaError(f"neither JSON ({json_error}) nor TOML ({error})") from None


def _criterion(number: int, entry: object, problems: list[str]) -> Criterion | None:
    name = entry.get("id") if isinstance(entry, dict) else None
    where = f"criterion {number}" + (f" ({name})" if isinstance(name, str) else "")
    try:
        return Criterion.model_validate(entry)
    except ValidationError as error:
        problems.append(f"{where}: {describe_errors(error)}")
        return None


def _checked(criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
    try:
        return Intent(prompt="", env_id="", criteria=criteria, author="user").criteria
    except ValidationError as error:
        raise CriteriaError(describe_errors(error)) from None
