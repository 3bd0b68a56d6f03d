"""The sandboxed side of a reward check: runs the reward and sends what it finds as JSON lines."""

from __future__ import annotations

import faulthandler
import io
import json
import resource
import sys
import time
import warnings
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from p2p.training.reward.check import CheckFinding, CheckResult, TermRange
from p2p.training.reward.runner import RewardRunner, SideInfoSource, decide_batched
from p2p.training.reward.trial import Transition, transitions
from p2p.training.reward_function import RewardError, RewardLoadError
from p2p.training.reward_loader import RewardSource, parse_source
from p2p.training.vec_env import make_batched_env

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from p2p.training.envs.batched_env import BatchedEnv
    from p2p.training.reward.calls import Floats

SLOW_US = 500.0
_SPEED_SECONDS = 0.1


def main(payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
    """Check `payload["code"]` and report."""
    Check(payload, send).run()


class PrintCounter(io.TextIOBase):
    """Takes what a reward prints, and keeps the beginning."""

    def __init__(self) -> None:
        self.count = 0
        self.head = ""

    def write(self, text: str) -> int:
        """Count; keep a little."""
        self.count += len(text)
        self.head = (self.head + text)[:200]
        return len(text)


class Check:
    """One check, step by step."""

    def __init__(self, payload: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
        self.payload = payload
        self._send = send

    def run(self) -> None:
        """Send findings, and a result if the reward ran through."""
        p = self.payload
        try:
            env = make_batched_env(p["env_id"], p["num_envs"], side_info=p["side_info"])
            env.reset_batch(p["seed"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
            text = f"{p['env_id']} cannot be made: {type(error).__name__}: {error}"
            self.find("error", "environment", text)
            return
        self.say("ready", None)
        # Where a reward hangs, the line it hangs in is printed shortly before it is killed.
        faulthandler.dump_traceback_later(0.8 * p["seconds"], file=sys.stderr)
        printed = PrintCounter()
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed):
            warnings.simplefilter("default")
            try:
                self.try_out(env)
            except RewardLoadError as error:
                self.find("error", "load", _with_traceback(error), error.line)
            except RewardError as error:
                self.find("error", _kind(error), _with_traceback(error), error.line, error.term)
        faulthandler.cancel_dump_traceback_later()
        if printed.count:
            text = f"it prints ({printed.count} characters, first {printed.head[:60]!r}). Printing "
            self.find("warning", "prints", text + "at every step slows training down; remove it")
        self.tell_warnings(caught)

    def say(self, kind: str, body: object) -> None:
        """Send a message."""
        self._send(json.dumps({"type": kind, "body": body}).encode())

    def find(
        self,
        level: Literal["error", "warning", "info"],
        code: str,
        message: str,
        line: int | None = None,
        term: str | None = None,
    ) -> None:
        """Send a finding."""
        term = None if term is None else term[:200]
        finding = CheckFinding(
            level=level, code=code, message=message[:20_000], line=line, term=term
        )
        self.say("finding", finding.model_dump())

    def try_out(self, env: BatchedEnv) -> None:
        """Load the reward, run it both ways, and tell what it gave."""
        p = self.payload
        options = {"engine": p["engine"], "name": p["name"]}
        source = parse_source(p["code"], **options)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        runner = RewardRunner(p["code"], env.num_envs, batched=False, **options)
        side = env if p["side_info"] else None
        rows: list[Floats] = []
        last = None
        for last in transitions(env, p["steps"], p["seed"]):
            rows.append(_call(runner, last, side))
        values = np.stack(rows, axis=1).reshape(1 + len(runner.term_names), -1)
        batched, reason = decide_batched(
            p["code"], env, side_info=p["side_info"], seed=p["seed"] + 1, **options
        )
        single = _microseconds(runner, last, side)
        together = None
        if batched:
            fast = RewardRunner(p["code"], env.num_envs, batched=True, **options)
            together = _microseconds(fast, last, side)
        self.tell_terms(values, runner)
        self.tell_calls(source, runner, reason, single)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        result = CheckResult(
            spec=runner.spec,
            stateful=runner.stateful,
            batched=batched,
            batch_reason=reason,
            total=_range("total", values[0]),
            terms=tuple(map(_range, runner.term_names, values[1:])),
            steps=p["steps"],
            num_envs=env.num_envs,
            us_per_step=single if together is None else together,
            us_single=single,
            us_batched=together,
            memory_mb=grown / 1024,
        )
        self.say("result", result.model_dump())

    def tell_terms(self, values: Floats, runner: RewardRunner) -> None:
        """Terms that do nothing, do not add up, or are not described."""
        total, terms = values[0], values[1:]
        if np.ptp(total) == 0.0:
            text = f"the reward is {total[0]:.6g} at every step, whatever the actions: nothing can "
            self.find("warning", "constant_reward", text + "be learned from it")
        for name, value in zip(runner.term_names, terms, strict=True):
            if not value.any():
                text = f"term {name!r} was 0 at every step, under random and under zero actions: "
                text += "check its condition, index and sign"
                self.find("warning", "dead_term", text, term=name)
            elif np.ptp(value) == 0.0:
                text = f"term {name!r} is {value[0]:.6g} at every step. That is right for a bonus "
                text += "for staying alive, and does nothing where episodes cannot end early"
                self.find("info", "constant_term", text, term=name)
        gap = np.abs(total - terms.sum(axis=0))
        worst = int(gap.argmax())
        if len(terms) and gap[worst] > 1e-6 * max(1.0, float(np.abs(total).max())):
            text = f"the terms do not add up to the total: {terms[:, worst].sum():.6g} against "
            text += f"{total[worst]:.6g} at one step. Return each term as it enters the sum"
            self.find("warning", "terms_do_not_sum", text)
        if not len(terms):
            self.find("warning", "no_terms", "it returns no terms, so nobody can see what it is "
                      "made of; return (total, {name: value, ...})")  # fmt: skip
        self.tell_description(runner)

    def tell_description(self, runner: RewardRunner) -> None:
        """Does the reward describe what it returns?"""
        described, returned = set(runner.spec.terms), set(runner.term_names)
        if missing := sorted(returned - described):
            text = f"not described: {', '.join(missing)}. Name every term in `terms`, or in the "
            self.find("warning", "undescribed_terms", text + "Terms: block of the docstring")
        if extra := sorted(described - returned):
            text = f"described but never returned: {', '.join(extra)}"
            self.find("warning", "unknown_terms", text)
        if not runner.spec.latex:
            self.find("info", "no_latex", "no formula: add `latex`, or LaTeX: to the docstring")

    def tell_calls(
        self, source: RewardSource, runner: RewardRunner, reason: str, single: float
    ) -> None:
        """How training will call it, and whether its state is handled."""
        if reason and self.payload["num_envs"] > 1:
            text = f"called once per environment, which is slower: {reason}. Take components as "
            text += "x[..., i], reduce with axis=-1, and use np.where instead of if"
            self.find("info", "per_environment", text)
        if runner.stateful and not runner.has_reset and not source.reads_episode_start:
            text = "it keeps state over the end of episodes: define reset(self, rows=None), or "
            self.find("warning", "state_not_reset", text + 'look at info["_episode_start"]')
        if single > SLOW_US:
            text = f"{single:.0f} microseconds per step is slow; a step of the simulation takes "
            self.find("warning", "slow", text + "20 to 300. Use numpy instead of Python loops")

    def tell_warnings(self, caught: list[warnings.WarningMessage]) -> None:
        """What Python and numpy warned of in the reward's own lines."""
        mine = [w for w in caught if w.filename == self.payload["name"]]
        for line, text in dict.fromkeys((w.lineno, str(w.message)) for w in mine[:1000]):
            self.find("warning", "runtime_warning", f"line {line}: {text}", line)


def _call(runner: RewardRunner, t: Transition, side: SideInfoSource | None) -> Floats:
    total, terms = runner(
        t.obs, t.action, t.next_obs, t.info, episode_start=t.episode_start, side_info=side
    )
    return np.stack([total, *terms.values()])


def _microseconds(runner: RewardRunner, t: Transition | None, side: SideInfoSource | None) -> float:
    """Per environment and step; the quickest of the calls that fit into a short time."""
    if t is None:
        return 0.0
    best, until = float("inf"), time.perf_counter() + _SPEED_SECONDS
    start = np.zeros_like(t.episode_start)
    while time.perf_counter() < until:
        began = time.perf_counter()
        runner(t.obs, t.action, t.next_obs, t.info, episode_start=start, side_info=side)
        best = min(best, time.perf_counter() - began)
    return best * 1e6 / runner.num_envs


def _range(name: str, values: Floats) -> TermRange:
    return TermRange(
        name=name,
        minimum=float(values.min()),
        mean=float(values.mean()),
        maximum=float(values.max()),
    )


def _kind(error: RewardError) -> str:
    if error.line is not None:
        return "raises"
    finite = not isinstance(error.value, float) or np.isfinite(error.value)
    return "returns" if finite else "not_finite"


def _with_traceback(error: RewardError) -> str:
    return f"{error}\n{error.traceback}".strip() if error.traceback else str(error)
