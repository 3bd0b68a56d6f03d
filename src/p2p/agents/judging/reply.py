"""What `judge_fn` may return, and how it is brought into one form.

Used in the sandbox, where it gives the message that an author needs, and again outside of it, where
nothing that comes out of the sandbox is believed. It imports nothing but numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_EVIDENCE = 500
MAX_DIAGNOSIS = 2000
MAX_TAGS = 20
MAX_TAG = 80
ROUNDING = 1e-6
"""So far beyond 0 or 1 a score is taken as 0 or 1."""

Reply = dict[str, Any]
"""criteria: {id: {score, value, evidence}}, diagnosis, failure_tags; plain JSON."""


class BadJudgeReply(ValueError):
    """What a judge returned cannot be used; the message is for its author."""


def tidy_reply(reply: object, ids: Sequence[str]) -> Reply:
    """The reply as plain JSON, with exactly these criteria; raises BadJudgeReply."""
    if not isinstance(reply, Mapping):
        raise BadJudgeReply(f"judge_fn must return a dict, not {_kind(reply)}")
    if "criteria" not in reply:
        raise BadJudgeReply("the dict that judge_fn returns has no key 'criteria'")
    given = reply["criteria"]
    if not isinstance(given, Mapping):
        raise BadJudgeReply(f"'criteria' must be a dict by criterion id, not {_kind(given)}")
    if missing := [name for name in ids if name not in given]:
        raise BadJudgeReply(f"'criteria' lacks {', '.join(missing)}")
    criteria = {name: _criterion(name, given[name]) for name in ids}
    if all(entry["score"] is None for entry in criteria.values()):
        raise BadJudgeReply("every score is None: nothing was judged")
    return {
        "criteria": criteria,
        "diagnosis": _text("diagnosis", reply.get("diagnosis", ""), MAX_DIAGNOSIS),
        "failure_tags": _tags(reply.get("failure_tags", ())),
    }


def _criterion(name: str, given: object) -> dict[str, Any]:
    entry = given if isinstance(given, Mapping) else {"score": given}
    if "score" not in entry:
        raise BadJudgeReply(f"criterion {name!r} has no 'score'")
    score = _number(f"the score of {name!r}", entry["score"])
    if score is not None:
        if not -ROUNDING <= score <= 1 + ROUNDING:
            raise BadJudgeReply(f"the score of {name!r} is {score:.6g}, not within 0 and 1")
        score = min(1.0, max(0.0, score))
    return {
        "score": score,
        "value": _number(f"the value of {name!r}", entry.get("value")),
        "evidence": _text(f"the evidence of {name!r}", entry.get("evidence", ""), MAX_EVIDENCE),
    }


def _number(what: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int | float | np.floating | np.integer | np.bool_):
        raise BadJudgeReply(f"{what} is {_kind(value)}, not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise BadJudgeReply(f"{what} is not a number: {error}") from None
    if not math.isfinite(number):
        raise BadJudgeReply(f"{what} is {number}, not a finite number")
    return number


def _text(what: str, value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise BadJudgeReply(f"{what} is {_kind(value)}, not a string")
    # Lone surrogates cannot be written as UTF-8.
    return value[:limit].encode("utf-8", "replace").decode("utf-8")


def _tags(value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise BadJudgeReply(f"'failure_tags' is {_kind(value)}, not a list of strings")
    if len(value) > MAX_TAGS:
        raise BadJudgeReply(f"'failure_tags' has {len(value)} entries; {MAX_TAGS} are allowed")
    return [_text("a failure tag", tag, MAX_TAG) for tag in value]


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
