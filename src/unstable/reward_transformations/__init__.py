"""Reward transforms: per game, per step and per batch."""

from unstable.reward_transformations.transformation_final import (
    ComposeFinalRewardTransforms,
    FinalRewardTransform,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageByOpponentFormatter,
    RoleAdvantageFormatter,
    WinDrawLossFormatter,
)
from unstable.reward_transformations.transformation_sampling import (
    ComposeSamplingRewardTransforms,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    SamplingRewardTransform,
)
from unstable.reward_transformations.transformation_step import (
    BlameInvalidMove,
    ComposeStepRewardTransforms,
    DiscountToEnd,
    PenaltyForInvalidMove,
    RewardForFormat,
    StepRewardTransform,
)

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
