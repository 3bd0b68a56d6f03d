"""Try a reward on its real environment, in a sandbox, and say what is wrong with it.

`check_reward` always comes back with a report, whatever the reward does: hang, exit, eat memory or
flood its output. The side that runs in the sandbox is check_worker.
"""

from __future__ import annotations

import ast
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from p2p.config import engine_of
from p2p.contracts import Record, RewardSpec
from p2p.sandbox import (
    Sandbox,
    SandboxedProcess,
    SandboxExit,
    UntrustedResultError,
    find_problems,
    message_reader,
    run_worker,
)
from p2p.training.engines.facts import surroundings
from p2p.training.engines.table import is_engine
from p2p.training.reward_function import RewardLoadError
from p2p.training.reward_loader import DEFAULT_NAME, parse_source, read_source

WORKER = "p2p.training.reward.check_worker"
SETUP_SECONDS = 120.0
GIB = 1 << 30
ENGINE_SECONDS = 300.0
MAX_LINES = 2000

Text = Annotated[str, Field(max_length=20_000)]


class CheckFinding(Record):
    """One thing about a reward. An error means that it cannot be trained on."""

    level: Literal["error", "warning", "info"]
    code: Annotated[str, Field(max_length=40)]
    message: Text
    line: int | None = None
    term: Annotated[str, Field(max_length=200)] | None = None


class TermRange(Record):
    """What values a term took under random and zero actions."""

    name: Annotated[str, Field(max_length=200)]
    minimum: float
    mean: float
    maximum: float


class CheckResult(Record):
    """What was measured of a reward that ran through."""

    spec: RewardSpec
    stateful: bool
    batched: bool
    """Whether training may call it once for all environments."""
    batch_reason: Text = ""
    total: TermRange
    terms: Annotated[tuple[TermRange, ...], Field(max_length=1000)]
    failed: float | None = None
    """The share of the steps in which `failed` is true; None: there is none."""
    steps: int
    num_envs: int
    us_per_step: float
    """Microseconds per environment and step, called as training will call it."""
    us_single: float
    """The same when called for each environment."""
    us_batched: float | None
    """The same when called for all at once; None if that does not work."""
    memory_mb: float
    """By how much the process grew while the reward ran."""


class _Ready(Record):
    type: Literal["ready"]
    body: None


class _Finding(Record):
    type: Literal["finding"]
    body: CheckFinding


class _Result(Record):
    type: Literal["result"]
    body: CheckResult


_Message = _Ready | _Finding | _Result
_MESSAGES: TypeAdapter[_Message] = TypeAdapter(Annotated[_Message, Field(discriminator="type")])


class CheckReport(Record):
    env_id: str
    name: str
    findings: tuple[CheckFinding, ...]
    result: CheckResult | None
    seconds: float

    @property
    def ok(self) -> bool:
        return self.result is not None and all(f.level != "error" for f in self.findings)


def check_reward(
    reward: str | Path,
    env_id: str,
    *,
    side_info: bool = True,
    observe_time: bool = False,
    num_envs: int = 8,
    steps: int = 200,
    seed: int = 0,
    seconds: float = 30.0,
    memory_bytes: int = 4 * GIB,
    engine: str | None = None,
) -> CheckReport:
    """Check a reward file, or source text, on `env_id`.

    `reward` is a path, or a string that is source text if it has a line break. `seconds` is how
    long the reward's own work may take. Raises SandboxUnavailable where there is no sandbox.
    """
    began = time.monotonic()
    engine = engine or engine_of(env_id)
    if is_engine(engine):  # its steps take longer than any reward: on a CPU, minutes
        seconds += ENGINE_SECONDS
    findings: list[CheckFinding] = []
    name = DEFAULT_NAME if _is_code(reward) else str(reward)
    result = None
    try:
        source = (
            parse_source(str(reward), engine) if _is_code(reward) else read_source(reward, engine)
        )
        code = source.code
    except RewardLoadError as error:
        findings.append(
            CheckFinding(level="error", code="load", message=str(error), line=error.line)
        )
    else:
        payload = {
            "code": code, "name": name, "env_id": env_id, "engine": engine, "seed": seed,
            "num_envs": num_envs, "steps": steps, "side_info": side_info, "seconds": seconds,
            "observe_time": observe_time,
        }  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="p2p-check-") as folder:
            sandbox = surroundings(engine, Path(folder)).sandbox(
                Path(folder),
                memory_bytes=memory_bytes,
                wall_seconds=SETUP_SECONDS + seconds,
                max_lines=MAX_LINES,
            )
            result, end = _run(payload, sandbox, seconds, findings)
        if result is None and not any(f.level == "error" for f in findings):
            findings.append(_ended(end, name, seconds))
        findings += _sandbox_warnings(code)
    return CheckReport(
        env_id=env_id,
        name=name,
        findings=tuple(findings),
        result=result,
        seconds=time.monotonic() - began,
    )


def _sandbox_warnings(code: str) -> list[CheckFinding]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the loader has said so
    return [
        CheckFinding(level="warning", code="sandbox", message=f"line {line}: {text}", line=line)
        for line, text in find_problems(tree)
    ]


def _is_code(reward: str | Path) -> bool:
    return isinstance(reward, str) and "\n" in reward


def _run(
    payload: Mapping[str, Any], sandbox: Sandbox, seconds: float, findings: list[CheckFinding]
) -> tuple[CheckResult | None, SandboxExit]:
    """Run the worker. The reward's clock starts when the environment is ready."""
    ready = False
    result = None

    def take(message: _Message, process: SandboxedProcess) -> None:
        nonlocal ready, result
        match message:
            case _Ready() if not ready:
                ready = True
                process.end_within(seconds, "the reward took too long")
            case _Finding() if len(findings) < 100:
                findings.append(message.body)
            case _Result():
                result = message.body

    read = message_reader(_MESSAGES)
    try:
        end = run_worker(WORKER, payload, sandbox, read=read, on_message=take).wait()
    except UntrustedResultError as error:
        end = SandboxExit(0, "protocol", f"what it sent is no message: {error}", "", 0.0)
    return result, end


def _ended(end: SandboxExit, name: str, seconds: float) -> CheckFinding:
    """The process ended before the check did: say how, and if possible in which line."""
    line = _last_line_of(end.output_tail, name)
    where = "" if line is None else f" in line {line}"
    texts = {
        "wall clock": (
            "hangs",
            (
                f"the reward did not finish {where.strip() or 'its calls'} within {seconds:g} s. "
                "Remove endless loops and waiting, and use numpy instead of long Python loops"
            ),
        ),
        "memory": ("memory", f"the reward used up its memory{where}: {end.message}"),
        "failed": ("internal", f"the check itself failed: {end.message}"),
        "disk": ("disk", f"the reward filled its disk space: {end.message}"),
    }
    code, message = texts.get(
        end.reason,
        ("exits", (f"the process ended{where} while the reward ran: {end.message}. A reward must "
         "return its values, not end the program")),
    )  # fmt: skip
    return CheckFinding(level="error", code=code, message=message, line=line)


def _last_line_of(output: str, name: str) -> int | None:
    """The first line that a stack dump names in the reward's file: the innermost one."""
    match = re.search(rf'File "{re.escape(name)}", line (\d+)', output)
    return int(match[1]) if match else None
