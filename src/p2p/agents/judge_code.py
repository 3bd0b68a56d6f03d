"""Run judge code on recorded episodes in the sandbox, and describe the episodes to it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, TypeAdapter

from p2p.agents.judge_worker import BadJudgeReply, Reply, tidy_reply
from p2p.agents.verdicts import code_opinion
from p2p.contracts import Criterion, JudgeOpinion, Record
from p2p.sandbox import (
    Sandbox,
    SandboxedProcess,
    SandboxExit,
    UntrustedResultError,
    message_reader,
    run_worker,
)
from p2p.training.env_spec import spec_for
from p2p.training.envs.registry import TRIALS, own_folders
from p2p.training.trajectory import (
    ENGINE_COLUMNS,
    SCALAR_COLUMNS,
    VECTOR_COLUMNS,
    RecordedEpisode,
    is_reward,
)

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.contracts import TrainSummary
    from p2p.training.env_spec import EnvSpec

SUMMARY_KEYS: dict[str, str] = {
    "env_id": "the environment",
    "dt": "seconds between two steps",
    "length": "number of steps",
    "seconds": "length * dt",
    "max_episode_steps": "steps after which an episode is cut off",
    "terminated": "whether the environment ended it early (in most: fell or became unhealthy)",
    "truncated": "whether it was cut off at its time limit",
    "final": "dict: every scalar of the environment's info at the last step",
    "seed": "of the episode's start; None if it is not known",
    "step": "the training step of the policy; None if it is no trained one",
    "training": "dict: total_timesteps and final_return of the training run; empty if none",
}
"""What stands in a summary, in words."""


def trajectory_columns(spec: EnvSpec) -> dict[str, str]:
    """Return the columns that a judge may use: shape over T steps, and meaning.

    No reward is among them, neither the environment's nor ours: it is not what was asked for.
    """
    joints = spec.joints
    qpos = sum(joint.qpos_size for joint in joints)
    qvel = sum(joint.qvel_size for joint in joints)
    bodies = len(spec.bodies)
    columns = {
        "step": "(T,) 0, 1, 2, ...",
        "timestamp": "(T,) seconds since the start, at the end of the step",
        "obs": f"(T, {spec.obs_dim}) observation before the step",
        "action": f"(T, {spec.action_dim}) the action",
        "next_obs": f"(T, {spec.obs_dim}) observation after the step",
        "qpos": f"(T, {qpos}) joint positions after the step",
        "qvel": f"(T, {qvel}) joint velocities after the step",
        "ctrl": f"(T, {spec.action_dim}) actuator inputs",
        "xpos": f"(T, {bodies}, 3) world position of each body (m)",
        "xquat": f"(T, {bodies}, 4) orientation of each body (w, x, y, z)",
        "cvel": f"(T, {bodies}, 6) angular, then linear velocity of each body",
        "cfrc_ext": f"(T, {bodies}, 6) contact torque, then force on each body",
        "terminated": "(T,) true at the last step if the environment ended the episode early",
        "truncated": "(T,) true at the last step if the time limit ended it",
    }
    info = {
        name: f"(T,) {text}"
        for name, text in spec.info_keys.items()
        if name not in columns and not is_reward(name)
    }
    measured = {
        name: f"({', '.join(['T', *map(str, entry.shape)])}{'' if entry.shape else ','}) quantity"
        for name, entry in spec.quantities.items()
    }
    return columns | info | measured


def episode_summary(
    config: TrainConfig,
    trajectory: RecordedEpisode,
    *,
    seed: int | None = None,
    step: int | None = None,
    training: TrainSummary | None = None,
) -> dict[str, Any]:
    """The summary of an episode that `record_episodes` recorded, as plain JSON."""
    spec = spec_for(config)
    known = {*SCALAR_COLUMNS, *VECTOR_COLUMNS, *ENGINE_COLUMNS}
    length = int(trajectory["step"][-1]) + 1
    return {
        "env_id": config.env_id,
        "dt": spec.dt,
        "length": length,
        "seconds": length * spec.dt,
        "max_episode_steps": config.max_episode_steps or spec.max_episode_steps,
        "terminated": bool(trajectory["terminated"][-1]),
        "truncated": bool(trajectory["truncated"][-1]),
        "final": {
            name: column[-1].item()
            for name, column in trajectory.columns.items()
            if name not in known and column.ndim == 1 and not is_reward(name)
        },
        "seed": seed,
        "step": step,
        "training": {}
        if training is None
        else {
            "total_timesteps": training.total_timesteps,
            "final_return": training.final_episodic_return,
        },
    }


WORKER = "p2p.agents.judge_worker"
SECONDS_PER_EPISODE = 20.0
START_SECONDS = 30.0
MEMORY_BYTES = 2 << 30
DISK_BYTES = 16 << 20
ADDRESS_BYTES = 1 << 30
_ANSWERED = {"judged", "failed"}
MAX_STARTS = 2
"""A process that ends in the middle is started once more, for the episodes after that one."""

Summary = Mapping[str, Any]


class _Message(Record):
    """A line of the worker."""

    type: Literal["ready", "begun", "judged", "failed"]
    index: int = 0
    reply: dict[str, Any] = Field(default_factory=dict)
    reason: str = ""


_MESSAGES = TypeAdapter(_Message)


def run_judge(
    code: str,
    trajectories: Sequence[Path],
    summaries: Sequence[Summary],
    criteria: Sequence[Criterion],
    *,
    seconds: float = SECONDS_PER_EPISODE,
    rows: Sequence[tuple[int, int]] | None = None,
) -> list[JudgeOpinion]:
    """The judge's opinion of each episode; one it cannot judge is `available=False`, with a reason.

    `seconds` is what one episode may take; `rows` from where to where it lies in its file, where
    several lie in one. Raises SandboxUnavailable where there is no sandbox;
    never because of what the judge does.
    """
    ids = [criterion.id for criterion in criteria if not criterion.visual]
    replies = _run(code, "judge_fn", ids, trajectories, summaries, seconds, rows)
    return [code_opinion(reply, criteria) for reply in replies]


def run_check(code: str, trajectory: Path, summary: Summary) -> str:
    """Return what `check_fn(trajectory, summary)` returns, as text; or why there is no answer."""
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
    rows: Sequence[tuple[int, int]] | None = None,
) -> list[Reply | str]:
    parts: Sequence[tuple[int, int] | None] = rows or [None] * len(trajectories)
    episodes = [
        {"trajectory": str(path.absolute()), "summary": dict(summary), "rows": part}
        for path, summary, part in zip(trajectories, summaries, parts, strict=True)
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
        answers, end = _run_worker(payload, trajectories, seconds)
        replies += answers
        if len(replies) < len(episodes):
            reason = _describe_exit(end, function, seconds)
            replies.append(reason)  # of the episode it was at; the others get another chance
    return replies + [reason] * (len(episodes) - len(replies))


def _run_worker(
    payload: dict[str, Any], readable: Sequence[Path], seconds: float
) -> tuple[list[Reply | str], SandboxExit]:
    with tempfile.TemporaryDirectory(prefix="p2p-judge-") as folder:
        sandbox = Sandbox(
            folder=Path(folder),
            readable=tuple({path.absolute() for path in readable}),
            import_paths=own_folders(),
            warm=TRIALS,
            memory_bytes=MEMORY_BYTES,
            disk_bytes=DISK_BYTES,
            address_bytes=ADDRESS_BYTES,
            max_threads=64,
            wall_seconds=START_SECONDS + seconds * len(payload["episodes"]),
            stall_seconds=START_SECONDS + seconds,
        )
        replies: list[Reply | str] = []
        count, expected = len(payload["episodes"]), {"ready"}

        def take(message: _Message, process: SandboxedProcess) -> None:
            nonlocal expected
            kind = message.type
            if kind not in expected or not message.index == len(replies) < count:
                raise UntrustedResultError(f"it sent something that is no answer: {message!r:.200}")
            if kind in _ANSWERED:
                replies.append(_answer(message, payload["ids"]))
            # Each once: what comes again would wind the clock up.
            expected = _ANSWERED if kind == "begun" else {"begun"}
            allowed = seconds if kind == "begun" else START_SECONDS
            process.end_within(allowed, "the judge took too long")

        read = message_reader(_MESSAGES)
        try:
            end = run_worker(WORKER, payload, sandbox, read=read, on_message=take).wait()
        except UntrustedResultError as error:
            end = SandboxExit(0, "protocol", str(error), "", 0.0)
        return replies, end


def _answer(message: _Message, ids: Sequence[str]) -> Reply | str:
    if message.type == "failed":
        return message.reason[:4000]
    if not ids:
        return message.reply
    try:
        return tidy_reply(message.reply, ids)
    except BadJudgeReply as error:
        return str(error)


def _describe_exit(end: SandboxExit, function: str, seconds: float) -> str:
    if end.reason in ("stalled", "wall clock"):
        return f"{function} hangs: it did not finish an episode within {seconds:g} s"
    if end.reason == "memory":
        return f"{function} used up its memory: {end.message}"
    return f"the process of {function} ended ({end.reason}): {end.message}"
