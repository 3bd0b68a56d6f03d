"""The sandboxed side of judging: calls judge code on one episode after the other, and reports.

It imports numpy and nothing heavier, so that a sandbox is up in a fraction of a second.
"""

from __future__ import annotations

import io
import json
import linecache
import math
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from p2p.agents.judging.reply import BadJudgeReply, tidy_reply
from p2p.training.trajectory import Rows, Trajectory

FILE = "judge_fn.py"
MAX_ANSWER = 4000


class _Nowhere(io.TextIOBase):
    """Takes what a judge prints."""

    def write(self, text: str) -> int:
        """Forget it."""
        return len(text)


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    """Judge `payload["episodes"]`; one line for each, in their order, as soon as it is there."""

    def say(message: dict[str, Any]) -> None:
        send(json.dumps(message).encode())

    code, ids = payload["code"], payload["ids"]
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    say({"type": "ready"})
    for index, episode in enumerate(payload["episodes"]):
        rows = Trajectory.load(Path(episode["trajectory"])).rows()
        say({"type": "begun", "index": index})
        try:
            with redirect_stdout(_Nowhere()):
                found = _call(code, payload["function"], rows, episode["summary"])
                answer = tidy_reply(found, ids) if ids else {"text": _shown(found)}
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


def _shown(value: object) -> str:
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
