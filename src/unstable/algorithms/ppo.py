"""Proximal policy optimisation: the clipped loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstable.algorithms import losses
from unstable.algorithms.policy_gradient import PackedBatch, PolicyGradient

if TYPE_CHECKING:
    from torch import Tensor


class PPO(PolicyGradient):
    """The clipped loss on the ratio to the policy that sampled, token by token.

    Args:
        clip: how far the ratio may go from 1 before a step gains nothing more by it.
        clip_high: the same upwards, where it should differ.
        centre: subtract the batch's mean from the rewards.
        scale: divide by their standard deviation.
        kl_coef: weight of the divergence from the model before training.
        entropy_coef: weight of the entropy, which is maximised.
    """

    needs_old = True

    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        *,
        centre: bool = False,
        scale: bool = False,
        kl_coef: float = 0.0,
        entropy_coef: float = 0.0,
    ) -> None:
        super().__init__(centre=centre, scale=scale, kl_coef=kl_coef, entropy_coef=entropy_coef)
        self.clip = clip
        self.clip_high = clip if clip_high is None else clip_high

    def policy_loss(self, logp: Tensor, batch: PackedBatch) -> tuple[Tensor, losses.Metrics]:
        return losses.clipped(
            logp, batch.old, batch.advantage, batch.weight, low=self.clip, high=self.clip_high
        )
