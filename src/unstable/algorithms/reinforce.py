"""REINFORCE with a constant divisor, and with the other games of the group as the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from unstable.algorithms import losses
from unstable.algorithms.losses import leave_one_out
from unstable.algorithms.policy_gradient import (
    PackedBatch,
    PolicyGradient,
    PolicyGradientOptions,
    Sample,
    games_and_groups,
)

if TYPE_CHECKING:
    from torch import Tensor


class Reinforce(PolicyGradient):
    """REINFORCE (Williams 1992): the loss is `-mean(reward * sum(logp) / max_generation_len)`.

    The divisor is the same for every answer, so that a long answer's tokens count as much as a
    short one's.

    Args:
        importance_cap: tokens of an older policy are weighed by how much likelier they are now,
            at most by so much; None: no correction.
        **options: those of PolicyGradient.
    """

    def __init__(
        self,
        importance_cap: float | None = 2.0,
        **options: Unpack[PolicyGradientOptions],
    ) -> None:
        super().__init__(**options)
        self.importance_cap = importance_cap

    def policy_loss(self, logp: Tensor, batch: PackedBatch) -> tuple[Tensor, losses.Metrics]:
        return losses.policy_gradient(
            logp, batch.old, batch.known, batch.advantage, batch.weight, cap=self.importance_cap
        )


class RLOO(Reinforce):
    """A step's advantage is its reward less the mean of its group's other games (Kool et al. 2019).

    Takes the arguments of Reinforce, and a buffer with `buffer_strategy="groups"`.
    """

    needs_episodes = True
    needs_groups = True

    def advantages(self, samples: Sequence[Sample]) -> list[float]:
        rewards = [sample.step.reward for sample in samples]
        return leave_one_out(rewards, *games_and_groups(samples))
