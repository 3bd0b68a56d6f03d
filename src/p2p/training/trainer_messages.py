"""What a sandboxed trainer says, held to the plan of its run.

The reward shares a process with the trainer and can send whatever it likes. A message that does not
belong to the run is the reward's failure: nothing of it is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from p2p.config import TrainConfig
from p2p.contracts import (
    ROLLOUT_LABELS,
    WORKER_MESSAGE,
    Alive,
    EvalReady,
    EvalResult,
    Finished,
    ScalarsReady,
    Started,
    StateSaved,
    WorkerMessage,
)
from p2p.sandbox import UntrustedResultError, read_message

MAX_NAMES = 500
"""Metrics of a line, and terms of a reward."""
MAX_NAME_LENGTH = 200
MAX_SIGNS = 20_000
"""Of life, from one update or evaluation to the next: hours, at two in a second."""
LEAST_STEPS_PER_S = 1.0
"""Slower than this on average, after an hour to begin with, a training is ended."""
LEAST_PLAYED_PER_S = 50.0
"""The same of a policy that is played, after two minutes: nothing is learned meanwhile."""


def parse_message(line: bytes) -> WorkerMessage:
    """A line from the sandbox; raises UntrustedResultError if it is not a message."""
    try:
        return WORKER_MESSAGE.validate_python(read_message(line))
    except ValidationError as error:
        text = f"the trainer sent something that is not a message: {line[:200]!r}"
        raise UntrustedResultError(text) from error


def longest_training_s(config: TrainConfig) -> float:
    """Return how long a run may take: silence is not the only way to make no progress."""
    episodes = config.num_evals * config.num_eval_rounds * config.eval_envs
    steps = config.total_timesteps + episodes * (config.max_episode_steps or 1000)
    return 3600 + steps / LEAST_STEPS_PER_S


def longest_evaluation_s(config: TrainConfig, episodes: int) -> float:
    """Return how long playing so many episodes may take, all rows of the environment in step."""
    rounds = -(-episodes // config.eval_envs)
    steps = rounds * config.eval_envs * (config.max_episode_steps or 1000)
    return 120 + steps / LEAST_PLAYED_PER_S


@dataclass
class TrainerMessages:
    """Reads the messages of one run, in their order."""

    config: TrainConfig
    started: bool = False
    step: int = -1
    """Of the last line of metrics."""
    evaluated: int = -1
    evaluations: int = 0
    updates: int = 0
    signs: int = 0
    """Of life, since there was progress."""

    def read(self, line: bytes) -> WorkerMessage:
        """Raises UntrustedResultError if it is no message, or does not belong to this run."""
        message = parse_message(line)
        if problem := self._find_excess(message) or self._find_problem(message):
            raise UntrustedResultError(f"the trainer's messages do not make a run: {problem}")
        return message

    def _find_excess(self, message: WorkerMessage) -> str:
        progress = isinstance(message, ScalarsReady | EvalReady)
        self.signs = 0 if progress else self.signs + 1
        self.updates += isinstance(message, ScalarsReady)
        if self.signs > MAX_SIGNS:
            return f"{MAX_SIGNS:,} signs of life without progress"
        planned = self.config.num_iterations
        return f"metrics of more than {planned} updates" if self.updates > planned else ""

    def _find_problem(self, message: WorkerMessage) -> str:
        last = self.config.num_iterations * self.config.batch_size
        match message:
            case Started(start_step=step):
                problem = f"a start at step {step}" if self.started or not 0 <= step <= last else ""
                self.started, self.step, self.evaluated = True, step, step - 1
                return problem or _check_names(message.reward.terms)
            case ScalarsReady(scalars=scalars):
                step, before = scalars.global_step, self.step
                self.step = step
                in_turn = self.started and before < step <= last
                return (
                    _check_names(scalars.values)
                    if in_turn
                    else f"metrics of step {step} at {before}"
                )
            case EvalReady():
                return self._check_evaluation(message, last)
            case StateSaved() | Alive() | Finished() if not 0 <= message.global_step <= last:
                return f"step {message.global_step} of {last}"
        return ""

    def _check_evaluation(self, message: EvalReady, last: int) -> str:
        step = message.result.global_step
        self.evaluations += 1
        if not self.started or not self.evaluated < step <= last:
            return f"an evaluation at step {step} after one at {self.evaluated}"
        if self.evaluations > self.config.num_evals + 1:
            return f"more than {self.config.num_evals} evaluations"
        if unknown := set(message.trajectory_files) - set(ROLLOUT_LABELS):
            return f"unknown rollouts: {sorted(unknown)[:5]}"
        self.evaluated = step
        most = self.config.eval_envs * self.config.num_eval_rounds
        return _check_result(message.result, most)


def _check_result(result: EvalResult, most: int) -> str:
    episodes = len(result.all_returns)
    if not 1 <= episodes <= most or len(result.episode_lengths) != episodes:
        return f"an evaluation over {episodes} episodes"
    numbers = [*result.all_returns, *result.reward_terms.values()]
    numbers += [value for value in vars(result).values() if isinstance(value, float)]
    if not all(map(math.isfinite, numbers)):
        return "returns that are not finite"
    if not all(0 <= index < episodes for index in result.rollouts.values()):
        return "rollouts of episodes that were not played"
    return _check_names(result.reward_terms) or _check_names(result.rollouts)


def _check_names(values: Mapping[str, object]) -> str:
    if len(values) > MAX_NAMES or any(len(name) > MAX_NAME_LENGTH for name in values):
        return f"{len(values)} names, or longer ones than {MAX_NAME_LENGTH} letters"
    return ""
