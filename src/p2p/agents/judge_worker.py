"""The sandboxed side of judging: calls judge code on one episode after the other, and reports.

It imports numpy and nothing heavier, so that a sandbox is up in a fraction of a second. What a
judge returns is checked here, where the message is one for its author, and once more by
`judge_code` outside of the sandbox, where nothing that comes out of it is believed.
"""

from __future__ import annotations

import io
import json
import linecache
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from p2p.training.trajectory import RecordedEpisode, Rows

FILE = "judge_fn.py"
MAX_ANSWER = 4000
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


class _Nowhere(io.TextIOBase):
    """Takes what a judge prints."""

    def write(self, text: str) -> int:
        return len(text)


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    """Judge `payload["episodes"]`; send a line for each in order, as soon as it is judged."""

    def say(message: dict[str, Any]) -> None:
        send(json.dumps(message).encode())

    code, ids = payload["code"], payload["ids"]
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    say({"type": "ready"})
    load = lru_cache(maxsize=1)(RecordedEpisode.load)
    for index, episode in enumerate(payload["episodes"]):
        recorded = load(Path(episode["trajectory"]))
        if episode["rows"] is not None:
            recorded = recorded.part(slice(*episode["rows"]))
        rows = (recorded.drop_rewards() if ids else recorded).rows()
        say({"type": "begun", "index": index})
        try:
            with redirect_stdout(_Nowhere()):
                value = _call(code, payload["function"], rows, episode["summary"])
                answer = tidy_reply(value, ids) if ids else {"text": _as_text(value)}
        # Whatever the code raises is its author's to read; sys.exit is caught here as well.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            say({"type": "failed", "index": index, "reason": _explain(error)})
        else:
            say({"type": "judged", "index": index, "reply": answer})


def _call(code: str, function: str, rows: Rows, summary: dict[str, Any]) -> object:
    # Executed anew for each episode: what a judge keeps of one must not change the next.
    namespace: dict[str, Any] = {"__name__": "judge_fn", "np": np, "numpy": np, "math": math}
    exec(compile(code, FILE, "exec"), namespace)  # noqa: S102 - that is what the sandbox is for
    judge = namespace.get(function)
    if not callable(judge):
        raise BadJudgeReply(f"the code defines no function {function}(trajectory, summary)")
    return judge(rows, json.loads(json.dumps(summary)))


def _as_text(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text[:MAX_ANSWER].encode("utf-8", "replace").decode("utf-8")


def _explain(error: BaseException) -> str:
    if isinstance(error, BadJudgeReply):
        return str(error)[:MAX_ANSWER]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == FILE]
    where = f"line {own[-1].lineno}, `{own[-1].line}`: " if own else ""
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno}: "
    # The message itself is the judge's code's, and may be of any size.
    return f"{where}{type(error).__name__}: {_message(error)}"[:MAX_ANSWER]


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception of the judge's own making
        text = "(no message)"
    return text.encode("utf-8", "replace").decode("utf-8")


def tidy_reply(reply: object, ids: Sequence[str]) -> Reply:
    """The reply as plain JSON, with exactly these criteria; raises BadJudgeReply."""
    if not isinstance(reply, Mapping):
        raise BadJudgeReply(f"judge_fn must return a dict, not {_kind(reply)}")
    if "criteria" not in reply:
        raise BadJudgeReply("the dict that judge_fn returns has no key 'criteria'")
    scores = reply["criteria"]
    if not isinstance(scores, Mapping):
        raise BadJudgeReply(f"'criteria' must be a dict by criterion id, not {_kind(scores)}")
    if missing := [name for name in ids if name not in scores]:
        raise BadJudgeReply(f"'criteria' lacks {', '.join(missing)}")
    criteria = {name: _criterion(name, scores[name]) for name in ids}
    if all(entry["score"] is None for entry in criteria.values()):
        raise BadJudgeReply("every score is None: nothing was judged")
    return {
        "criteria": criteria,
        "diagnosis": _text("diagnosis", reply.get("diagnosis", ""), MAX_DIAGNOSIS),
        "failure_tags": _tags(reply.get("failure_tags", ())),
    }


def _criterion(name: str, value: object) -> dict[str, Any]:
    entry = value if isinstance(value, Mapping) else {"score": value}
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
