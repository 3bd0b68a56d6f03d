"""REINFORCE with a constant divisor, and with the other games of the group as the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unstable.algorithms import losses
from unstable.algorithms.advantages import leave_one_out
from unstable.algorithms.policy_gradient import PackedBatch, PolicyGradient
from unstable.algorithms.samples import Sample, games_and_groups

if TYPE_CHECKING:
    from torch import Tensor


class Reinforce(PolicyGradient):
    """The loss is `-mean(reward * sum(logp) / max_generation_len)`.

    The divisor is the same for every answer, so that a long answer's tokens count as much as a
    short one's.

    Args:
        importance_cap: tokens of an older policy are weighed by how much likelier they are now,
            at most by so much; None: no correction.
        centre: subtract the batch's mean from the rewards.
        scale: divide by their standard deviation.
        kl_coef: weight of the divergence from the model before training.
        entropy_coef: weight of the entropy, which is maximised.
    """

    def __init__(
        self,
        importance_cap: float | None = 2.0,
        *,
        centre: bool = False,
        scale: bool = False,
        kl_coef: float = 0.0,
        entropy_coef: float = 0.0,
    ) -> None:
        super().__init__(centre=centre, scale=scale, kl_coef=kl_coef, entropy_coef=entropy_coef)
        self.importance_cap = importance_cap

    def policy_loss(self, logp: Tensor, batch: PackedBatch) -> tuple[Tensor, losses.Metrics]:
        return losses.policy_gradient(
            logp, batch.old, batch.known, batch.advantage, batch.weight, cap=self.importance_cap
        )


class RLOO(Reinforce):
    """A step's advantage is its reward less the mean of the other games of its group.

    Takes the arguments of Reinforce, and a buffer with `buffer_strategy="groups"`.
    """

    needs_episodes = True

    def advantages(self, samples: Sequence[Sample]) -> list[float]:
        rewards = [sample.step.reward for sample in samples]
        return leave_one_out(rewards, *games_and_groups(samples))
