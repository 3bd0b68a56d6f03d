"""Try a reward on its real environment, in a sandbox, and say what is wrong with it.

`check_reward` always comes back with a report, whatever the reward does: hang, exit, eat memory or
flood its output. The side that runs in the sandbox is check_worker.
"""

from __future__ import annotations

import ast
import re
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from p2p.config import TrainConfig
from p2p.contracts import Record, RewardSpec
from p2p.sandbox import (
    LIBRARIES_BYTES,
    Sandbox,
    SandboxedProcess,
    SandboxExit,
    UntrustedResultError,
    find_problems,
    read_message,
    start,
)
from p2p.training.engines.facts import surroundings
from p2p.training.engines.table import is_engine
from p2p.training.envs.registry import own_folders
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
    env: TrainConfig | str,
    *,
    name: str | None = None,
    num_envs: int = 8,
    steps: int = 200,
    seed: int = 0,
    seconds: float = 30.0,
    memory_bytes: int = 4 * GIB,
) -> CheckReport:
    """Check a reward file, or source text, on an environment: by its id, or as it is trained on.

    `reward` is a path, or a string that is source text if it has a line break; `name` is what
    messages call its file. `seconds` is how long the reward's own work may take. Raises
    SandboxUnavailable where there is no sandbox.
    """
    began = time.monotonic()
    config = TrainConfig(env_id=env) if isinstance(env, str) else env
    engine = config.engine
    if is_engine(engine):  # its steps take longer than any reward: on a CPU, minutes
        seconds += ENGINE_SECONDS
    findings: list[CheckFinding] = []
    name = name or (DEFAULT_NAME if _is_code(reward) else str(reward))
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
            "code": code, "name": name, "config": config.model_dump(mode="json"),
            "seed": seed, "num_envs": num_envs, "steps": steps, "seconds": seconds,
        }  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="p2p-check-") as folder:
            around = surroundings(engine, Path(folder))
            sandbox = Sandbox(
                folder=Path(folder),
                python=around.python,
                readable=around.readable,
                memory_bytes=memory_bytes + around.memory_bytes,
                gpu=around.gpu,
                disk_bytes=GIB // 16 if around.python is None else GIB,  # kernels, if any are new
                wall_seconds=SETUP_SECONDS + seconds + around.start_seconds,
                max_lines=MAX_LINES,
                address_bytes=LIBRARIES_BYTES,
                import_paths=own_folders(),
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **around.env},
            )
            with start(WORKER, payload, sandbox) as process:
                result = _follow(process, seconds, findings)
                end = process.wait()
        if result is None and not any(f.level == "error" for f in findings):
            findings.append(_ended(end, name, seconds))
        findings += _sandbox_warnings(code)
    return CheckReport(
        env_id=config.env_id,
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


def _follow(
    process: SandboxedProcess, seconds: float, findings: list[CheckFinding]
) -> CheckResult | None:
    """Read what the worker says. The reward's clock starts when the environment is ready."""
    ready = False
    result = None
    for line in process.lines():
        try:
            message = read_message(line, finite=False)
            kind, body = message["type"], message["body"]
            if kind == "ready" and not ready:
                ready = True
                process.end_within(seconds, "the reward took too long")
            elif kind == "finding" and len(findings) < 100:
                findings.append(CheckFinding.model_validate(body))
            elif kind == "result":
                result = CheckResult.model_validate(body)
        except (UntrustedResultError, KeyError, TypeError, ValidationError) as error:
            process.kill("protocol", f"what it sent is no message: {error}")
    return result


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
