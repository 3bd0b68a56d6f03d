"""Run judge code on recorded episodes, sandboxed; of each comes a reply, or why there is none."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2p.agents.judging.judge_worker import BadJudgeReply, Reply, tidy_reply
from p2p.agents.judging.verdicts import code_opinion
from p2p.contracts import Criterion, JudgeOpinion
from p2p.sandbox import (
    Sandbox,
    SandboxedProcess,
    SandboxExit,
    UntrustedResultError,
    read_message,
    start,
)
from p2p.training.envs.registry import own_folders

WORKER = "p2p.agents.judging.judge_worker"
SECONDS_PER_EPISODE = 20.0
START_SECONDS = 30.0
MEMORY_BYTES = 2 << 30
DISK_BYTES = 16 << 20
ADDRESS_BYTES = 1 << 30
_ANSWERED = ("judged", "failed")
MAX_STARTS = 2
"""A process that ends in the middle is started once more, for the episodes after that one."""

Summary = Mapping[str, Any]


def run_judge(
    code: str,
    trajectories: Sequence[Path],
    summaries: Sequence[Summary],
    criteria: Sequence[Criterion],
    *,
    seconds: float = SECONDS_PER_EPISODE,
) -> list[JudgeOpinion]:
    """The judge's opinion of each episode; one it cannot judge is `available=False`, with a reason.

    `seconds` is what one episode may take. Raises SandboxUnavailable where there is no sandbox;
    never because of what the judge does.
    """
    ids = [criterion.id for criterion in criteria if not criterion.visual]
    replies = _run(code, "judge_fn", ids, trajectories, summaries, seconds)
    return [code_opinion(reply, criteria) for reply in replies]


def run_check(code: str, trajectory: Path, summary: Summary) -> str:
    """What `check_fn(trajectory, summary)` returns, as text; or why there is no answer."""
    seconds = SECONDS_PER_EPISODE
    [reply] = _run(code, "check_fn", [], [trajectory], [summary], seconds)
    return reply if isinstance(reply, str) else str(reply.get("text", ""))[:4000]


def _run(
    code: str,
    function: str,
    ids: Sequence[str],
    trajectories: Sequence[Path],
    summaries: Sequence[Summary],
    seconds: float,
) -> list[Reply | str]:
    episodes = [
        {"trajectory": str(path.absolute()), "summary": dict(summary)}
        for path, summary in zip(trajectories, summaries, strict=True)
    ]
    replies: list[Reply | str] = []
    reason = "it was not started"
    for _ in range(MAX_STARTS):
        if len(replies) == len(episodes):
            break
        payload = {
            "code": code,
            "function": function,
            "ids": list(ids),
            "episodes": episodes[len(replies) :],
        }
        heard, end = _start(payload, trajectories, seconds)
        replies += heard
        if len(replies) < len(episodes):
            reason = _why(end, function, seconds)
            replies.append(reason)  # of the episode it was at; the others get another chance
    return replies + [reason] * (len(episodes) - len(replies))


def _start(
    payload: dict[str, Any], readable: Sequence[Path], seconds: float
) -> tuple[list[Reply | str], SandboxExit]:
    with tempfile.TemporaryDirectory(prefix="p2p-judge-") as folder:
        sandbox = Sandbox(
            folder=Path(folder),
            readable=tuple(path.absolute() for path in readable),
            import_paths=own_folders(),
            memory_bytes=MEMORY_BYTES,
            disk_bytes=DISK_BYTES,
            address_bytes=ADDRESS_BYTES,
            max_threads=64,
            wall_seconds=START_SECONDS + seconds * len(payload["episodes"]),
            stall_seconds=START_SECONDS + seconds,
        )
        with start(WORKER, payload, sandbox) as process:
            heard, forged = _follow(process, payload["ids"], len(payload["episodes"]), seconds)
            end = process.wait()
            # It may have come to its end before it could be killed for what it sent.
            return heard, replace(end, reason="protocol", message=forged) if forged else end


def _follow(
    process: SandboxedProcess, ids: Sequence[str], count: int, seconds: float
) -> tuple[list[Reply | str], str]:
    """What the worker says, and what it sent that is no answer; the clock runs while it judges."""
    heard: list[Reply | str] = []
    expected: tuple[str, ...] = ("ready",)
    for line in process.lines():
        try:
            message = read_message(line, finite=False)
            kind, index = message["type"], message.get("index", 0)
            in_turn = kind in expected and index == len(heard) < count
            if in_turn and kind in _ANSWERED:
                heard.append(_answer(message, ids))
            if in_turn:  # each once: what comes again would wind the clock up
                expected = _ANSWERED if kind == "begun" else ("begun",)
                allowed = seconds if kind == "begun" else START_SECONDS
                process.end_within(allowed, "the judge took too long")
        except (UntrustedResultError, KeyError, TypeError):
            in_turn = False
        if not in_turn:
            forged = f"it sent something that is no answer: {line[:200]!r}"
            process.kill("protocol", forged)
            return heard, forged
    return heard, ""


def _answer(message: Mapping[str, Any], ids: Sequence[str]) -> Reply | str:
    if message["type"] == "failed":
        return str(message["reason"])[:4000]
    reply: Reply = message["reply"]
    if not ids:
        return reply
    try:
        return tidy_reply(reply, ids)
    except BadJudgeReply as error:
        return str(error)


def _why(end: SandboxExit, function: str, seconds: float) -> str:
    if end.reason in ("stalled", "wall clock"):
        return f"{function} hangs: it did not finish an episode within {seconds:g} s"
    if end.reason == "memory":
        return f"{function} used up its memory: {end.message}"
    return f"the process of {function} ended ({end.reason}): {end.message}"
