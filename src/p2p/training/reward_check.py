"""Try a reward on its real environment, in a sandbox, and say what is wrong with it.

`check_reward` always comes back with a report, whatever the reward does: hang, exit, eat memory or
flood its output. `main` is what runs in the sandbox; it sends what it finds as JSON lines.
"""

from __future__ import annotations

import faulthandler
import io
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter

from p2p.config import TrainConfig
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
from p2p.training.envs.registry import TRIALS
from p2p.training.reward_function import RewardError, RewardLoadError, RewardRefused
from p2p.training.reward_loader import (
    DEFAULT_NAME,
    find_hanging_code,
    line_in_stack,
    parse_source,
    read_source,
)
from p2p.training.reward_runner import (
    EnvClock,
    Floats,
    RewardRunner,
    Transition,
    Turn,
    decide_batched,
    trial_transitions,
)
from p2p.utils.utils import parse_python

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import BatchedEnv


WORKER = "p2p.training.reward_check"
SETUP_SECONDS = 120.0
GIB = 1 << 30
ENGINE_SECONDS: Mapping[Turn, float] = {"reward": 300.0, "environment": 600.0}
ENVIRONMENT_SECONDS = 120.0
"""What the environment itself may take. The trials use half of it: one long step still ends."""
ENVIRONMENT_ENDS = ("wall clock", "failed", "crashed", "killed from outside")
"""What may be the environment's doing in its turn. Limits of memory and disk are seen late."""
MAX_LINES = 4000
FEW_STEPS = 20
"""With fewer, nothing is said of what the terms do."""
QUICK_STEPS = 50
"""Of the check before a training: enough to see that a reward runs."""

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


class _TurnBegins(Record):
    type: Literal["turn"]
    body: Turn


class _Finding(Record):
    type: Literal["finding"]
    body: CheckFinding


class _Result(Record):
    type: Literal["result"]
    body: CheckResult


_Message = _TurnBegins | _Finding | _Result
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
    messages call its file. `seconds` is how long the reward's own work may take; an environment
    that is slow is tried for fewer steps. Raises SandboxUnavailable where there is no sandbox.
    """
    began = time.monotonic()
    config = TrainConfig(env_id=env) if isinstance(env, str) else env
    engine = config.engine
    limits: dict[Turn, float] = {"reward": seconds, "environment": ENVIRONMENT_SECONDS}
    if is_engine(engine):  # kernels are compiled when they are first used: on a CPU, minutes
        limits = {turn: limit + ENGINE_SECONDS[turn] for turn, limit in limits.items()}
    findings: list[CheckFinding] = []
    name = name or (DEFAULT_NAME if _is_code(reward) else str(reward))
    result = None
    try:
        source = (
            parse_source(str(reward), engine, name=name)
            if _is_code(reward)
            else read_source(reward, engine)
        )
        code = source.code
    except RewardLoadError as error:
        findings.append(
            CheckFinding(level="error", code="load", message=str(error), line=error.line)
        )
    else:
        payload = {
            "code": code, "name": name, "config": config.model_dump(mode="json"),
            "seed": seed, "num_envs": num_envs, "steps": steps, "limits": limits,
        }  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="p2p-check-") as folder:
            sandbox = surroundings(config, Path(folder)).sandbox(
                Path(folder),
                memory_bytes=memory_bytes,
                wall_seconds=SETUP_SECONDS + sum(limits.values()),
                max_lines=MAX_LINES,
                warm=TRIALS,
            )
            result, end, turn = _run(payload, sandbox, limits, findings)
        if result is None and not any(f.level == "error" for f in findings):
            blamed = turn if end.reason in ENVIRONMENT_ENDS else "reward"
            describe = _describe_reward_end if blamed == "reward" else _describe_environment_end
            findings.append(describe(end, name, limits[blamed]))
        findings += _sandbox_warnings(code)
    return CheckReport(
        env_id=config.env_id,
        name=name,
        findings=tuple(findings),
        result=result,
        seconds=time.monotonic() - began,
    )


def require_trainable(code: str, config: TrainConfig, name: str) -> None:
    """Raise RewardRefused, with the reward's file and line, if it cannot be trained on."""
    if is_engine(config.engine):  # which takes minutes to start
        return
    report = check_reward(f"{code}\n", config, name=name, steps=QUICK_STEPS)
    errors = [finding.message for finding in report.findings if finding.level == "error"]
    if errors:
        raise RewardRefused("\n".join(errors))


def _sandbox_warnings(code: str) -> list[CheckFinding]:
    try:
        tree = parse_python(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the loader has said so
    return [
        CheckFinding(level="warning", code="sandbox", message=f"line {line}: {text}", line=line)
        for line, text in find_problems(tree)
    ]


def _is_code(reward: str | Path) -> bool:
    return isinstance(reward, str) and "\n" in reward


def _run(
    payload: Mapping[str, Any],
    sandbox: Sandbox,
    limits: Mapping[Turn, float],
    findings: list[CheckFinding],
) -> tuple[CheckResult | None, SandboxExit, Turn]:
    """Run the worker; return its result, its end, and whose turn it was then.

    Once the environment is ready, it and the reward each have a clock that runs in its own turns.
    """
    left = dict(limits)
    turn: Turn = "environment"  # it is made first
    since: float | None = None
    result = None

    def take(message: _Message, process: SandboxedProcess) -> None:
        nonlocal turn, since, result
        match message:
            case _TurnBegins():
                now = time.monotonic()
                left[turn] -= 0.0 if since is None else now - since
                turn, since = message.body, now
                process.end_within(max(0.0, left[turn]), f"the {turn} took too long")
            case _Finding() if len(findings) < 100:
                findings.append(message.body)
            case _Result():
                result = message.body

    read = message_reader(_MESSAGES)
    try:
        end = run_worker(WORKER, payload, sandbox, read=read, on_message=take).wait()
    except UntrustedResultError as error:
        end = SandboxExit(0, "protocol", f"what it sent is not a message: {error}", "", 0.0)
        turn = "reward"
    return result, end, turn


def _describe_environment_end(end: SandboxExit, _: str, seconds: float) -> CheckFinding:
    """The environment ended the check: the reward is not to blame."""
    _, culprit = find_hanging_code(end.output_tail)
    text = (
        f"{culprit} did not finish within {seconds:g} s: the reward could not be tried"
        if end.reason == "wall clock"
        else f"the environment ended the process: {end.message}"
    )
    return CheckFinding(level="error", code="environment", message=text)


def _describe_reward_end(end: SandboxExit, name: str, seconds: float) -> CheckFinding:
    """The process ended before the check did: say how, and if possible in which line."""
    line = line_in_stack(end.output_tail, name)
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


SLOW_US = 500.0
_SPEED_SECONDS = 0.02
_MOST_CHARACTERS = 20_000


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    """Check `payload["code"]`; send findings, and a result if the reward ran through."""

    def send_message(kind: str, body: object) -> None:
        send(json.dumps({"type": kind, "body": body}).encode())

    def find(finding: CheckFinding) -> None:
        send_message("finding", finding.model_dump())

    try:
        config = TrainConfig.model_validate(payload["config"])
        env = _environment(payload, config)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
        text = f"{payload['config']['env_id']} cannot be made: {type(error).__name__}: {error}"
        find(
            _describe_error(error)
            if isinstance(error, RewardError)
            else _error("environment", text)
        )
        return

    def begin_turn(turn: Turn) -> None:
        send_message("turn", turn)
        # Where something hangs, the line it hangs in is printed shortly before it is killed.
        faulthandler.dump_traceback_later(0.8 * payload["limits"][turn], file=sys.stderr)

    begin_turn("reward")
    printed = PrintCounter()
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed):
        warnings.simplefilter("default")
        try:
            result, findings = try_reward(payload, config, env, begin_turn)
        except RewardError as error:
            find(_describe_error(error))
        else:
            for finding in findings:
                find(finding)
            send_message("result", result.model_dump())
    faulthandler.cancel_dump_traceback_later()
    if printed.count:
        text = f"it prints ({printed.count} characters, first {printed.head[:60]!r}). Printing at "
        find(_warning("prints", text + "every step slows training down; remove it"))
    mine = [w for w in caught if w.filename == payload["name"]]
    for line, text in dict.fromkeys((w.lineno, str(w.message)) for w in mine[:1000]):
        find(_warning("runtime_warning", f"line {line}: {text}", line=line))


def _environment(payload: Mapping[str, Any], config: TrainConfig) -> BatchedEnv:
    """What the reward is tried on, with what it reads in info; raises RewardError and others."""
    from p2p.training.training_loop import make_environment

    parse_source(payload["code"], config.engine, name=payload["name"])
    # Of a reward that goes by the time, every part is to be seen within the few steps of a trial.
    short = {"max_episode_steps": max(2, payload["steps"] // 10)} if config.observe_time else {}
    changes = {**short, "num_threads": 1}
    env = make_environment(config.model_copy(update=changes), payload["num_envs"], payload["code"])
    env.reset_batch(payload["seed"])
    return env


class PrintCounter(io.TextIOBase):
    """Takes what a reward prints, and keeps the beginning."""

    def __init__(self) -> None:
        self.count = 0
        self.head = ""

    def write(self, text: str) -> int:
        self.count += len(text)
        self.head = (self.head + text)[:200]
        return len(text)


def try_reward(
    payload: Mapping[str, Any],
    config: TrainConfig,
    env: BatchedEnv,
    begin_turn: Callable[[Turn], None],
) -> tuple[CheckResult, list[CheckFinding]]:
    """Load the reward, run it both ways, and describe what it gave."""
    code, seed = payload["code"], payload["seed"]
    options = {"engine": config.engine, "name": payload["name"]}
    side = env if config.side_info else None
    source = parse_source(code, **options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runner = RewardRunner(code, env.num_envs, batched=False, **options, side_info=side)
    rows: list[Floats] = []
    last = None
    clock = EnvClock(payload["limits"]["environment"] / 4, begin_turn)
    for last in trial_transitions(env, payload["steps"], seed, clock):
        total, terms = runner(last)
        rows.append(np.stack([total, *terms.values()]))
        if runner.ends_episodes:
            runner.failed(last)
    values = np.stack(rows, axis=1).reshape(1 + len(runner.term_names), -1)
    clock.limit_s *= 2
    batched, reason = decide_batched(
        code, env, side_info=config.side_info, seed=seed + 1, clock=clock, **options
    )
    us_single, us_batched = _microseconds(runner, last), None
    if batched:
        fast = RewardRunner(code, env.num_envs, batched=True, **options, side_info=side)
        us_batched = _microseconds(fast, last)
    findings = [*_about_description(runner)]
    if len(rows) < min(payload["steps"], FEW_STEPS):
        text = f"the environment is slow: the reward was tried on {len(rows)} steps only"
        findings.append(_warning("slow_environment", text))
    else:  # fewer say nothing about what its terms do
        findings += _about_terms(values, runner.term_names)
    if reason and env.num_envs > 1:
        text = f"called once per environment, which is slower: {reason}. Take components as "
        text += "x[..., i], reduce with axis=-1, and use np.where instead of if"
        findings.append(_info("per_environment", text))
    if runner.stateful and not runner.has_reset and not source.reads_episode_start:
        text = "it keeps state over the end of episodes: define reset(self, rows=None), or look "
        findings.append(_warning("state_not_reset", text + 'at info["_episode_start"]'))
    if us_single > SLOW_US:
        text = f"{us_single:.0f} microseconds per step is slow; a step of the simulation takes 20 "
        findings.append(_warning("slow", text + "to 300. Use numpy instead of Python loops"))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    result = CheckResult(
        spec=runner.spec,
        stateful=runner.stateful,
        batched=batched,
        batch_reason=reason,
        total=_range("total", values[0]),
        terms=tuple(map(_range, runner.term_names, values[1:])),
        failed=runner.failures / values.shape[1] if runner.ends_episodes else None,
        steps=len(rows),
        num_envs=env.num_envs,
        us_per_step=us_single if us_batched is None else us_batched,
        us_single=us_single,
        us_batched=us_batched,
        memory_mb=grown / 1024,
    )
    return result, findings


def _about_terms(values: Floats, names: tuple[str, ...]) -> Iterator[CheckFinding]:
    """Terms that do nothing or do not add up."""
    total, terms = values[0], values[1:]
    if np.ptp(total) == 0.0:
        text = f"the reward is {total[0]:.6g} at every step, whatever the actions: nothing can be "
        yield _warning("constant_reward", text + "learned from it")
    for name, value in zip(names, terms, strict=True):
        if not value.any():
            text = f"term {name!r} was 0 at every step, under random and under zero actions: "
            yield _warning("dead_term", text + "check its condition, index and sign", term=name)
        elif np.ptp(value) == 0.0:
            text = f"term {name!r} is {value[0]:.6g} at every step. That is right for a bonus for "
            text += "staying alive, and does nothing where episodes cannot end early"
            yield _info("constant_term", text, term=name)
    gap = np.abs(total - terms.sum(axis=0))
    worst = int(gap.argmax())
    if len(terms) and gap[worst] > 1e-6 * max(1.0, float(np.abs(total).max())):
        text = f"the terms do not add up to the total: {terms[:, worst].sum():.6g} against "
        text += f"{total[worst]:.6g} at one step. Return each term as it enters the sum"
        yield _warning("terms_do_not_sum", text)
    if not len(terms):
        text = "it returns no terms, so nothing shows its parts; return (total, {name: "
        yield _warning("no_terms", text + "value, ...})")


def _about_description(runner: RewardRunner) -> Iterator[CheckFinding]:
    """Does the reward describe what it returns?"""
    described, returned = set(runner.spec.terms), set(runner.term_names)
    if missing := sorted(returned - described):
        text = f"not described: {', '.join(missing)}. Name every term in `terms`, or in the "
        yield _warning("undescribed_terms", text + "Terms: block of the docstring")
    if extra := sorted(described - returned):
        yield _warning("unknown_terms", f"described but never returned: {', '.join(extra)}")
    if not runner.spec.latex:
        yield _info("no_latex", "no formula: add `latex`, or LaTeX: to the docstring")


def _finding(
    level: Literal["error", "warning", "info"], code: str, message: str, **place: Any
) -> CheckFinding:
    return CheckFinding(level=level, code=code, message=message[:_MOST_CHARACTERS], **place)


_error, _warning, _info = (
    partial(_finding, "error"),
    partial(_finding, "warning"),
    partial(_finding, "info"),
)


def _describe_error(error: RewardError) -> CheckFinding:
    term = None if error.term is None else error.term[:200]
    return _error(_kind(error), _format_error(error), line=error.line, term=term)


def _microseconds(runner: RewardRunner, transition: Transition | None) -> float:
    """Per environment and step; the quickest of the calls that fit into a short time."""
    if transition is None:
        return 0.0
    best, until = float("inf"), time.perf_counter() + _SPEED_SECONDS
    no_start = transition._replace(episode_start=np.zeros_like(transition.episode_start))
    while time.perf_counter() < until:
        began = time.perf_counter()
        runner(no_start)
        best = min(best, time.perf_counter() - began)
    return best * 1e6 / runner.num_envs


def _range(name: str, values: Floats) -> TermRange:
    low, mean, high = float(values.min()), float(values.mean()), float(values.max())
    return TermRange(name=name, minimum=low, mean=mean, maximum=high)


def _kind(error: RewardError) -> str:
    if isinstance(error, RewardLoadError):
        return "load"
    if error.line is not None:
        return "raises"
    finite = not isinstance(error.value, float) or np.isfinite(error.value)
    return "returns" if finite else "not_finite"


def _format_error(error: RewardError) -> str:
    return f"{error}\n{error.traceback}".strip() if error.traceback else str(error)
