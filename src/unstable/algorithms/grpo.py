"""Group-relative policy optimisation, and the same done right."""

from __future__ import annotations

from collections.abc import Sequence

from unstable.algorithms.advantages import group_relative
from unstable.algorithms.ppo import PPO
from unstable.algorithms.samples import Sample, games_and_groups


class GRPO(PPO):
    """Games that began alike are compared with each other (Shao et al. 2024): there is no critic.

    The advantage is the reward less the group's mean, divided by the group's spread; an answer's
    tokens share one unit of weight, however many they are. Takes the arguments of PPO, and a
    buffer with `buffer_strategy="groups"`.
    """

    needs_episodes = True
    needs_groups = True
    per_length = True
    by_spread = True
    """Divide by the spread of the group."""

    def advantages(self, samples: Sequence[Sample]) -> list[float]:
        rewards = [sample.step.reward for sample in samples]
        return group_relative(rewards, *games_and_groups(samples), scale=self.by_spread)


class DrGRPO(GRPO):
    """GRPO without its two biases (Liu et al. 2025).

    The sum over an answer's tokens is divided by `max_generation_len`, the advantage by nothing:
    no group counts more for agreeing.
    """

    per_length = False
    by_spread = False
