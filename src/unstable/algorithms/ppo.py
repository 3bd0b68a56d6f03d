"""The clipped policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from unstable.algorithms import losses
from unstable.algorithms.policy_gradient import (
    PackedBatch,
    PolicyGradient,
    PolicyGradientOptions,
)

if TYPE_CHECKING:
    from torch import Tensor


class PPO(PolicyGradient):
    """The clipped policy gradient of PPO (Schulman et al. 2017, equation 7), without its critic.

    The ratio to the policy that sampled is clipped token by token; the advantage is the reward,
    less the batch's mean with `centre`. PPO with the critic of that paper is `A2C(clip=0.2)`.

    Args:
        clip: how far the ratio may go from 1 before a step gains nothing more by it.
        clip_high: the same upwards, where it should differ.
        **options: those of PolicyGradient.
    """

    needs_old = True

    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        **options: Unpack[PolicyGradientOptions],
    ) -> None:
        super().__init__(**options)
        self.clip = clip
        self.clip_high = clip if clip_high is None else clip_high

    def policy_loss(self, logp: Tensor, batch: PackedBatch) -> tuple[Tensor, losses.Metrics]:
        return losses.clipped(
            logp, batch.old, batch.advantage, batch.weight, low=self.clip, high=self.clip_high
        )
