"""Reward transforms: of final rewards, of single turns, and of batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from unstable.core import RewardTransform, Stack, Step, Trajectory, outcome

__all__ = [
    "BlameInvalidMove",
    "ComposeFinalRewardTransforms",
    "ComposeSamplingRewardTransforms",
    "ComposeStepRewardTransforms",
    "DiscountToEnd",
    "FinalRewardTransform",
    "NormalizeRewards",
    "NormalizeRewardsByEnv",
    "PenaltyForInvalidMove",
    "RewardForFormat",
    "RoleAdvantageByEnvFormatter",
    "RoleAdvantageByOpponentFormatter",
    "RoleAdvantageFormatter",
    "SamplingRewardTransform",
    "StepRewardTransform",
    "WinDrawLossFormatter",
]

_TINY = 1e-8


# --- final rewards, of all players at once --------------------------------------------------------


class FinalRewardTransform(RewardTransform, ABC):
    """Maps the rewards of all players, by seat, to new ones."""

    @abstractmethod
    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the new rewards; `x` is left as it is."""

    def in_game(self, x: dict[int, float], env_id: str | None, opponent: str) -> dict[int, float]:
        """Return the new rewards, where the kind of opponent is known."""
        del opponent
        return self(x, env_id)


class ComposeFinalRewardTransforms(Stack[FinalRewardTransform]):
    def __call__(
        self, x: dict[int, float], env_id: str | None = None, opponent: str = ""
    ) -> dict[int, float]:
        for transform in self.transforms:
            x = transform.in_game(x, env_id, opponent)
        return x


class WinDrawLossFormatter(FinalRewardTransform):
    """Win, draw or loss instead of a score, as `unstable.core.outcome` tells them apart."""

    def __init__(self, win: float = 1.0, draw: float = 0.0, loss: float = -1.0) -> None:
        self.win, self.draw, self.loss = win, draw, loss

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        del env_id
        values = {1: self.win, 0: self.draw, -1: self.loss}
        return {pid: values[outcome(x, pid)] for pid in x}


class _RoleAdvantage(FinalRewardTransform):
    """Subtracts a baseline per role.

    The baseline is read before it takes the game in: a reward measured against a mean that already
    contains it would be too small.
    """

    def __init__(self, tau: float) -> None:
        if not 0.0 < tau <= 1.0:
            raise ValueError(f"tau is a share of the newest game, in (0, 1], not {tau}")
        self.tau = tau
        self.baselines: dict[str, dict[int, float]] = {}
        self.initial: dict[int, float] = {}

    def _advantages(self, key: str, x: dict[int, float]) -> dict[int, float]:
        baselines = self.baselines.setdefault(key, dict(self.initial))
        advantages = {}
        for pid, reward in x.items():
            baseline = baselines.get(pid, 0.0)
            advantages[pid] = reward - baseline
            baselines[pid] = baseline + self.tau * (reward - baseline)
        return advantages

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines; seats as text, since JSON has no other keys."""
        return {
            key: {str(pid): value for pid, value in values.items()}
            for key, values in self.baselines.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baselines = {
            key: {int(pid): float(value) for pid, value in values.items()}
            for key, values in state.items()
        }


class RoleAdvantageFormatter(_RoleAdvantage):
    """Subtracts a moving average of each role's past rewards.

    Args:
        role_advantage: the averages to begin with, by seat; 0 where there is none.
        tau: the weight of the newest game.
    """

    def __init__(self, role_advantage: dict[int, float] | None = None, tau: float = 0.05) -> None:
        super().__init__(tau)
        self.initial = dict(role_advantage or {})

    @property
    def role_advantage(self) -> dict[int, float]:
        return dict(self.baselines.get("", self.initial))

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        del env_id
        return self._advantages("", x)


class RoleAdvantageByEnvFormatter(_RoleAdvantage):
    """The same, with averages of their own for every environment."""

    def __init__(
        self, default_role_advantage: dict[int, float] | None = None, tau: float = 0.05
    ) -> None:
        super().__init__(tau)
        self.initial = dict(default_role_advantage or {})

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return self._advantages(env_id or "", x)


class RoleAdvantageByOpponentFormatter(RoleAdvantageByEnvFormatter):
    """The same, with averages of their own also for every kind of opponent.

    A role that wins half its mirror games may win all those against an old checkpoint; one average
    over both would be right for neither.
    """

    def in_game(self, x: dict[int, float], env_id: str | None, opponent: str) -> dict[int, float]:
        return self._advantages(f"{env_id or ''}|{opponent}", x)


# --- single turns ---------------------------------------------------------------------------------


class StepRewardTransform(RewardTransform, ABC):
    """Maps the reward of one turn to a new one."""

    @abstractmethod
    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the new reward of turn `step_index`."""


class ComposeStepRewardTransforms(Stack[StepRewardTransform]):
    """Applies transforms in order."""

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        for transform in self.transforms:
            base_reward = transform(trajectory, step_index, base_reward)
        return base_reward


class RewardForFormat(StepRewardTransform):
    """Adds `reward` for a well-formed answer, `penalty` for another."""

    def __init__(self, reward: float = 0.0, penalty: float = 0.0) -> None:
        self.reward, self.penalty = reward, penalty

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        feedback = trajectory.format_feedbacks[step_index]
        well_formed = feedback.get("correct_answer_format", False)
        return base_reward + (self.reward if well_formed else self.penalty)


class PenaltyForInvalidMove(StepRewardTransform):
    """Adds `penalty` for an invalid move, `reward` for another."""

    def __init__(self, reward: float = 0.0, penalty: float = 0.0) -> None:
        self.reward, self.penalty = reward, penalty

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        invalid = trajectory.format_feedbacks[step_index].get("invalid_move", False)
        return base_reward + (self.penalty if invalid else self.reward)


class BlameInvalidMove(StepRewardTransform):
    """Blames an invalid move that ended a game: the other moves get no reward.

    The penalty lies below a loss by default. At the price of a loss, an invalid move would look
    better than a legal one wherever the game is lost anyway.
    """

    def __init__(self, penalty: float = -1.5) -> None:
        self.penalty = penalty

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        if trajectory.format_feedbacks[step_index].get("invalid_move", False):
            return self.penalty
        return base_reward if trajectory.ended_by_invalid is None else 0.0


class DiscountToEnd(StepRewardTransform):
    """Early turns get less of the outcome: times `gamma` for each later turn of the player."""

    def __init__(self, gamma: float = 0.99) -> None:
        self.gamma = gamma

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        return base_reward * self.gamma ** (len(trajectory.actions) - 1 - step_index)


# --- batches --------------------------------------------------------------------------------------


class SamplingRewardTransform(RewardTransform, ABC):
    """Changes the rewards of a batch, in place."""

    @abstractmethod
    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the same steps with new rewards."""


class ComposeSamplingRewardTransforms(Stack[SamplingRewardTransform]):
    def __call__(self, steps: list[Step]) -> list[Step]:
        for transform in self.transforms:
            steps = transform(steps)
        return steps


class NormalizeRewards(SamplingRewardTransform):
    """Subtracts the batch's mean; with `z_score` divides by the standard deviation too."""

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Step]) -> list[Step]:
        _normalize(steps, z_score=self.z_score)
        return steps


class NormalizeRewardsByEnv(SamplingRewardTransform):
    """The same for each environment by itself."""

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Step]) -> list[Step]:
        by_env: dict[str, list[Step]] = {}
        for step in steps:
            by_env.setdefault(step.env_id, []).append(step)
        for group in by_env.values():
            _normalize(group, z_score=self.z_score)
        return steps


def _normalize(steps: list[Step], *, z_score: bool) -> None:
    """Normalise in place; equal rewards become 0: there is nothing to learn from them."""
    if not steps:
        return
    mean = math.fsum(step.reward for step in steps) / len(steps)
    scale = 1.0
    if z_score:
        variance = math.fsum((step.reward - mean) ** 2 for step in steps) / len(steps)
        scale = math.sqrt(variance) + _TINY
    for step in steps:
        step.reward = (step.reward - mean) / scale
