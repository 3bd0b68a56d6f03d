"""What a trainer is handed, and when it evaluates and saves its state.

Shared by both trainers, so that the same configuration gives the same checkpoints.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from p2p.contracts import Alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from p2p.config import TrainConfig
    from p2p.contracts import WorkerMessage

Phase = Literal["setup", "compile", "rollout", "update", "eval"]


@dataclass(frozen=True, slots=True)
class TrainContext:
    """One training run, as seen from inside the sandbox."""

    config: TrainConfig
    reward_code: str
    folder: Path
    """The only place to write; a resume state in it is continued."""
    send: Callable[[WorkerMessage], None]


ADVICE = "a lower learning_rate or max_grad_norm, or normalize_reward, may help"


class TrainingDivergedError(RuntimeError):
    """The parameters are no longer numbers."""


def finite_metrics(metrics: Mapping[str, Any], step: int) -> dict[str, float]:
    """The metrics of an update that exist; raises TrainingDivergedError if it went wrong."""
    values = {name: float(value) for name, value in metrics.items()}
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    if broken and broken != ["explained_variance"]:  # undefined where all returns are equal
        raise TrainingDivergedError(
            f"after {step} steps no longer finite: {', '.join(broken)}; {ADVICE}"
        )
    return {name: value for name, value in values.items() if name not in broken}


class Heartbeat:
    """Tells the parent that work goes on, a few times a second at most."""

    def __init__(self, send: Callable[[WorkerMessage], None], interval_s: float = 0.5) -> None:
        self.global_step = 0
        self._send = send
        self._interval = interval_s
        self._next = 0.0

    def __call__(self, phase: Phase) -> None:
        """Report, unless that was done a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._send(Alive(phase=phase, global_step=self.global_step))

    def phase(self, phase: Phase) -> Callable[[], None]:
        """A callback that reports this phase."""
        return lambda: self(phase)

    @contextmanager
    def during(self, phase: Phase, interval_s: float = 2.0) -> Iterator[None]:
        """Report from a thread, while one long call that cannot report runs: our own only.

        Never around a reward's code: what hangs in there must fall silent.
        """
        over = threading.Event()

        def report() -> None:
            while not over.wait(interval_s):
                self(phase)

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def evaluation_steps(config: TrainConfig) -> list[int]:
    """The steps at or after which the policy is evaluated: i / num_evals of the whole run."""
    count = config.num_evals
    return [-(-i * config.total_timesteps // count) for i in range(1, count + 1)]


def evaluation_due(config: TrainConfig, before: int, after: int) -> bool:
    """Whether a rollout from step `before` to `after` reached an evaluation."""
    return any(before < step <= after for step in evaluation_steps(config))


def checkpoint_due(config: TrainConfig, before: int, after: int) -> bool:
    """Whether the state is to be saved: every checkpoint_interval, and after evaluations."""
    interval = config.checkpoint_interval
    return before // interval != after // interval or evaluation_due(config, before, after)
