"""Transforms of the rewards of single turns."""

from __future__ import annotations

from abc import ABC, abstractmethod

from unstable.core import RewardTransform, Stack, Trajectory


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
