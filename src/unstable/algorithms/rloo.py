"""REINFORCE with the other games of the group as the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstable.algorithms.advantages import leave_one_out
from unstable.algorithms.reinforce import Reinforce
from unstable.algorithms.samples import games_and_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unstable.algorithms.samples import Sample


class RLOO(Reinforce):
    """A step's advantage is its reward less the mean of the other games of its group.

    Takes the arguments of Reinforce, and a buffer with `buffer_strategy="groups"`.
    """

    needs_episodes = True

    def advantages(self, samples: Sequence[Sample]) -> list[float]:
        """Relative to the others."""
        rewards = [sample.step.reward for sample in samples]
        return leave_one_out(rewards, *games_and_groups(samples))
