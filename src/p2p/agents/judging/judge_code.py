"""Run judge code on recorded episodes, sandboxed; the result is an opinion or a reason."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p2p.agents.judging.reply import BadJudgeReply, Reply, tidy_reply
from p2p.agents.judging.scores import split_tags, weighted_score
from p2p.contracts import Criterion, CriterionScore, JudgeOpinion
from p2p.sandbox import Sandbox, SandboxedProcess, SandboxExit, start
from p2p.training.envs.registry import own_folders

WORKER = "p2p.agents.judging.judge_worker"
SECONDS_PER_EPISODE = 20.0
START_SECONDS = 30.0
MEMORY_BYTES = 2 << 30
DISK_BYTES = 16 << 20
MAX_STARTS = 2
"""A process that ends in the middle is started once more, for the episodes after that one."""

Summary = Mapping[str, Any]


def run_judge(
    code: str,
    trajectories: Sequence[Path],
    summaries: Sequence[Summary],
    criteria: Sequence[Criterion],
    *,
    unsafe_local: bool = False,
    seconds: float = SECONDS_PER_EPISODE,
) -> list[JudgeOpinion]:
    """The judge's opinion of each episode; one it cannot judge is `available=False`, with a reason.

    `seconds` is what one episode may take. Raises SandboxUnavailable where there is no sandbox and
    `unsafe_local` is not given; never because of what the judge does.
    """
    ids = [criterion.id for criterion in criteria]
    found = _run(code, "judge_fn", ids, trajectories, summaries, unsafe_local, seconds)
    return [_opinion(each, criteria) for each in found]


def run_check(code: str, trajectory: Path, summary: Summary, *, unsafe_local: bool = False) -> str:
    """What `check_fn(trajectory, summary)` returns, as text; or why there is no answer."""
    found = _run(code, "check_fn", [], [trajectory], [summary], unsafe_local, SECONDS_PER_EPISODE)
    return found[0] if isinstance(found[0], str) else str(found[0].get("text", ""))[:4000]


Found = Reply | str
"""What the judge says of an episode, or why it says nothing."""


def _run(
    code: str,
    function: str,
    ids: Sequence[str],
    trajectories: Sequence[Path],
    summaries: Sequence[Summary],
    unsafe_local: bool,
    seconds: float,
) -> list[Found]:
    episodes = [
        {"trajectory": str(path.absolute()), "summary": dict(summary)}
        for path, summary in zip(trajectories, summaries, strict=True)
    ]
    found: list[Found] = []
    reason = "it was not started"
    for _ in range(MAX_STARTS):
        if len(found) == len(episodes):
            break
        payload = {
            "code": code,
            "function": function,
            "ids": list(ids),
            "episodes": episodes[len(found) :],
        }
        heard, end = _start(payload, trajectories, unsafe_local, seconds)
        found += heard
        if len(found) < len(episodes):
            reason = _why(end, function, seconds)
            found.append(reason)  # of the episode it was at; the others get another chance
    return found + [reason] * (len(episodes) - len(found))


def _start(
    payload: dict[str, Any], readable: Sequence[Path], unsafe_local: bool, seconds: float
) -> tuple[list[Found], SandboxExit]:
    with tempfile.TemporaryDirectory(prefix="p2p-judge-") as folder:
        sandbox = Sandbox(
            folder=Path(folder),
            readable=tuple(path.absolute() for path in readable),
            import_paths=own_folders(),
            memory_bytes=MEMORY_BYTES,
            disk_bytes=DISK_BYTES,
            max_threads=64,
            wall_seconds=START_SECONDS + seconds * len(payload["episodes"]),
            stall_seconds=START_SECONDS + seconds,
            unsafe_local=unsafe_local,
        )
        with start(WORKER, payload, sandbox) as process:
            heard = _follow(process, payload["ids"], len(payload["episodes"]), seconds)
            return heard, process.wait()


def _follow(
    process: SandboxedProcess, ids: Sequence[str], count: int, seconds: float
) -> list[Found]:
    """Read what the worker says; the judge's clock runs while it is at an episode."""
    heard: list[Found] = []
    deadline = math.inf
    for line in process.lines(tick=0.2):
        if line is None:
            if time.monotonic() > deadline:
                process.kill("stalled", "the judge took too long")
            continue
        try:
            message = json.loads(line)
            answered = message["type"] in ("judged", "failed")
            in_turn = not answered or (message["index"] == len(heard) < count)
            deadline = math.inf if answered else time.monotonic() + seconds
            if answered and in_turn:
                heard.append(_answer(message, ids))
        except (ValueError, KeyError, TypeError, RecursionError):
            in_turn = False
        if not in_turn:
            process.kill("protocol", f"it sent something that is no answer: {line[:200]!r}")
            break
    return heard


def _answer(message: Mapping[str, Any], ids: Sequence[str]) -> Found:
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


def _opinion(found: Found, criteria: Sequence[Criterion]) -> JudgeOpinion:
    if isinstance(found, str):
        return JudgeOpinion(judge="code", available=False, reason=found)
    scores = tuple(
        CriterionScore(id=name, **{key: entry[key] for key in ("score", "value", "evidence")})
        for name, entry in found["criteria"].items()
    )
    tags, others = split_tags(found["failure_tags"])
    diagnosis = found["diagnosis"]
    if others:
        diagnosis = f"{diagnosis} Also: {', '.join(others)}.".strip()
    score = weighted_score(scores, criteria)
    assert score is not None  # a reply without any score is refused
    return JudgeOpinion(
        judge="code",
        available=True,
        score=score,
        criteria=scores,
        diagnosis=diagnosis,
        failure_tags=tags,
    )
