"""Rewards on their way to the learner; the three examples of the documentation as printed."""

from __future__ import annotations

import json
import math

import pytest

import unstable.reward_transformations as retra
from unstable.core import Step, Trajectory
from unstable.reward_transformations import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    NormalizeRewardsByEnv,
    RewardForFormat,
    SamplingRewardTransform,
    StepRewardTransform,
    WinDrawLossFormatter,
)


def steps(*rewards: float, env_id: str = "A") -> list[Step]:
    return [Step(0, "o", "a", reward, env_id) for reward in rewards]


def rewards_of(batch: list[Step]) -> list[float]:
    return [step.reward for step in batch]


def trajectory(*feedbacks: dict[str, bool], **fields: object) -> Trajectory:
    count = len(feedbacks)
    return Trajectory(
        pid=[0] * count, obs=["o"] * count, actions=["a"] * count,
        format_feedbacks=list(feedbacks), **fields,  # type: ignore[arg-type]
    )  # fmt: skip


# --- the documentation's examples ---------------------------------------------------------


class ScaleRewardTransform(FinalRewardTransform):
    """Multiply every reward by *alpha*."""

    def __init__(self, alpha: float = 0.1):
        self.alpha = alpha

    def __call__(self, x, env_id=None):
        return {pid: r * self.alpha for pid, r in x.items()}


class DiscountFutureRewards(StepRewardTransform):
    """Apply gamma^t discount to every intermediate reward."""

    def __init__(self, gamma: float = 0.99):
        self.gamma = gamma

    def __call__(self, trajectory, step_index, base_reward):
        return base_reward * (self.gamma**step_index)


class ClampRewards(SamplingRewardTransform):
    """Clip rewards into [min_r, max_r]."""

    def __init__(self, min_r: float = -1.0, max_r: float = 1.0):
        self.min_r, self.max_r = min_r, max_r

    def __call__(self, steps, env_id=None):
        for s in steps:
            s.reward = max(self.min_r, min(self.max_r, s.reward))
        return steps


def test_the_documented_final_example():
    transforms = ComposeFinalRewardTransforms(
        [WinDrawLossFormatter(), ScaleRewardTransform(alpha=0.2)]
    )
    assert transforms({0: 7.5, 1: -3.0}, "A") == {0: 0.2, 1: -0.2}
    assert transforms({0: 4.0, 1: 4.0}) == {0: 0.0, 1: 0.0}


def test_the_documented_step_example():
    step_transforms = ComposeStepRewardTransforms(
        [RewardForFormat(reward=0.05, penalty=-0.05), DiscountFutureRewards(gamma=0.97)]
    )
    game = trajectory({"correct_answer_format": True}, {"correct_answer_format": False})
    assert step_transforms(game, 0, 1.0) == pytest.approx(1.05)
    assert step_transforms(game, 1, 1.0) == pytest.approx(0.95 * 0.97)


def test_the_documented_sampling_example():
    sampling_transforms = ComposeSamplingRewardTransforms(
        [NormalizeRewardsByEnv(z_score=True), ClampRewards(min_r=-2, max_r=2)]
    )
    batch = sampling_transforms(steps(*[0.0] * 99, 100.0))
    assert max(rewards_of(batch)) == 2
    assert min(rewards_of(batch)) == pytest.approx(-0.1, abs=0.01)


# --- final --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({0: 0.01, 1: 0.0}, {0: 1, 1: -1}),
        ({0: 5, 1: 5}, {0: 0, 1: 0}),
        ({0: 1.0, 1: 0.0, 2: -1.0}, {0: 1, 1: -1, 2: -1}),
        ({0: 3.0, 1: 3.0, 2: 1.0}, {0: 1, 1: 1, 2: -1}),
        ({0: 1.0}, {0: 1}),
        ({0: 0.3}, {0: 0}),
        ({0: -0.3}, {0: -1}),
    ],
)
def test_win_draw_loss_handles_any_scores(scores, expected):
    assert WinDrawLossFormatter()(scores) == expected


def test_the_baseline_is_read_before_it_is_updated():
    transform = retra.RoleAdvantageFormatter(tau=0.5)
    assert transform({0: 1.0, 1: -1.0}) == {0: 1.0, 1: -1.0}
    assert transform({0: 1.0, 1: -1.0}) == {0: 0.5, 1: -0.5}
    assert transform.role_advantage == {0: 0.75, 1: -0.75}


def test_role_advantages_are_kept_per_environment():
    transform = retra.RoleAdvantageByEnvFormatter(tau=1.0)
    transform({0: 1.0}, "A")
    assert transform({0: 1.0}, "A") == {0: 0.0}
    assert transform({0: 1.0}, "B") == {0: 1.0}


def test_role_advantages_can_be_kept_per_kind_of_opponent():
    stack = ComposeFinalRewardTransforms([retra.RoleAdvantageByOpponentFormatter(tau=1.0)])
    stack({0: 1.0}, "A", "mirror")
    assert stack({0: 1.0}, "A", "mirror") == {0: 0.0}
    assert stack({0: 1.0}, "A", "checkpoint") == {0: 1.0}


def test_a_restored_stack_continues_identically():
    def stack() -> ComposeFinalRewardTransforms:
        return ComposeFinalRewardTransforms(
            [WinDrawLossFormatter(), retra.RoleAdvantageByEnvFormatter(tau=0.1)]
        )

    one, other = stack(), stack()
    for game in range(7):
        one({0: game % 3, 1: 1}, "A")
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert one({0: 3, 1: 1}, "A") == other({0: 3, 1: 1}, "A")


def test_a_state_of_other_transforms_is_refused():
    state = ComposeFinalRewardTransforms([WinDrawLossFormatter()]).state_dict()
    with pytest.raises(ValueError, match="RoleAdvantage"):
        ComposeFinalRewardTransforms([retra.RoleAdvantageFormatter()]).load_state_dict(state)


# --- step ---------------------------------------------------------------------------------


def test_blame_invalid_move_penalises_only_that_move():
    blame = retra.BlameInvalidMove(-1.5)
    game = trajectory({"invalid_move": False}, {"invalid_move": True}, ended_by_invalid=0)
    assert [blame(game, i, -1.0) for i in range(2)] == [0.0, -1.5]
    opponents_fault = trajectory({"invalid_move": False}, ended_by_invalid=1)
    assert blame(opponents_fault, 0, 1.0) == 0.0
    assert blame(trajectory({"invalid_move": False}), 0, 1.0) == 1.0


def test_discount_to_end_shrinks_early_turns():
    discount = retra.DiscountToEnd(0.5)
    game = trajectory({}, {}, {})
    assert [discount(game, i, 8.0) for i in range(3)] == [2.0, 4.0, 8.0]


# --- sampling -----------------------------------------------------------------------------


def test_rewards_are_centred_and_only_on_request_scaled():
    assert rewards_of(retra.NormalizeRewards()(steps(0, 4))) == [-2, 2]
    assert rewards_of(retra.NormalizeRewards(True)(steps(0, 4))) == pytest.approx([-1, 1])


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("transform", [retra.NormalizeRewards, retra.NormalizeRewardsByEnv])
def test_constant_rewards_become_zero_and_not_nan(transform, count):
    found = rewards_of(transform(True)(steps(*[0.1] * count)))
    assert all(math.isfinite(reward) and abs(reward) < 1e-6 for reward in found)


def test_environments_are_normalised_by_themselves():
    batch = [*steps(1, 3, env_id="A"), *steps(100, 300, env_id="B")]
    assert rewards_of(NormalizeRewardsByEnv()(batch)) == [-1, 1, -100, 100]
