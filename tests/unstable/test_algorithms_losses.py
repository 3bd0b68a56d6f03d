"""Advantages and losses, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unstable.algorithms import losses
from unstable.algorithms.losses import (
    gae,
    group_relative,
    leave_one_out,
    normalize,
    per_turn_rewards,
)

REWARDS = [1.0, 1.0, -1.0, 3.0, 5.0]
GAMES = [0, 0, 1, 2, 3]
GROUPS = ["a", "a", "a", "b", "b"]


def test_equal_rewards_have_no_advantage():
    assert normalize([0.7, 0.7, 0.7], scale=True) == pytest.approx([0.0, 0.0, 0.0])
    assert group_relative([2.0, 2.0], [0, 1], ["a", "a"]) == [0.0, 0.0]
    assert normalize([]) == []


def test_grpo_compares_games_not_steps():
    # group a: games 1 and -1, mean 0, spread 1, though three steps have the mean 1/3
    found = group_relative(REWARDS, GAMES, GROUPS)
    assert found == [1.0, 1.0, -1.0, -1.0, 1.0]


def test_dr_grpo_does_not_divide_by_the_spread():
    found = group_relative([0.0, 4.0, 1.0, 1.5], [0, 1, 2, 3], ["a", "a", "b", "b"], scale=False)
    assert found == [-2.0, 2.0, -0.25, 0.25]


def test_leave_one_out_compares_with_the_other_games():
    found = leave_one_out([1.0, 1.0, -1.0, 3.0], [0, 0, 1, 2], ["a", "a", "a", "a"])
    assert found == [0.0, 0.0, -3.0, 3.0]


def test_a_game_alone_in_its_group_has_no_advantage():
    assert leave_one_out([5.0], [0], ["a"]) == [0.0]
    assert group_relative([5.0], [0], ["a"]) == [0.0]


def test_per_turn_rewards_give_outcome_to_last_turn():
    assert per_turn_rewards([1.0, 1.0, 1.0]) == [0.0, 0.0, 1.0]


def test_gae_matches_hand_computation():
    # surprises: 0 + .4 - .2 = .2; 0 + .6 - .4 = .2; 1 - .6 = .4
    found = gae([0.0, 0.0, 1.0], [0.2, 0.4, 0.6], 0.5)
    assert found == pytest.approx([0.2 + 0.5 * (0.2 + 0.5 * 0.4), 0.2 + 0.5 * 0.4, 0.4])


@given(
    st.lists(
        st.tuples(st.floats(-5, 5, width=32), st.floats(-5, 5, width=32)), min_size=1, max_size=9
    )
)
def test_gae_lambda_one_is_credit_minus_value(turns):
    earned, values = [list(column) for column in zip(*turns, strict=True)]
    found = gae(per_turn_rewards(earned), values, 1.0)
    expected = [credit - value for credit, value in zip(earned, values, strict=True)]
    assert found == pytest.approx(expected, abs=1e-6)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_token_weights_average_over_sequences():
    # three sequences, one of them without a token: each sum / 10, then the mean
    assert losses.token_weights([2, 1], 3, 10) == [1 / 30] * 3
    assert losses.token_weights([2, 1], 2, None) == [0.25, 0.25, 0.5]


def test_reinforce_has_a_constant_divisor():
    # -mean(reward * sum(logp) / 10) of (2, [-1, -3]) and (-1, [-2])
    logp = tensor(-1.0, -3.0, -2.0)
    weight = tensor(*losses.token_weights([2, 1], 2, 10))
    loss, _ = losses.policy_gradient(
        logp, logp, torch.ones(3, dtype=torch.bool), tensor(2, 2, -1), weight, cap=None
    )
    assert loss.item() == pytest.approx(-(2 * -4 / 10 + -1 * -2 / 10) / 2)


def test_importance_ratio_is_truncated_where_known():
    old = tensor(0.0, math.log(2.0), math.log(0.25), 0.0)
    known = torch.tensor([True, True, True, False])
    ratio = losses.importance(tensor(0, 0, 0, -9), old, known, cap=2.0)
    assert ratio.tolist() == pytest.approx([1.0, 0.5, 2.0, 1.0])


def test_importance_ratio_has_no_gradient():
    logp = tensor(-1.0).requires_grad_()
    loss, seen = losses.policy_gradient(
        logp, tensor(-1.0 - math.log(1.5)), torch.tensor([True]), tensor(2.0), tensor(1.0), cap=4.0
    )
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.5 * 2.0])
    assert seen["ratio_mean"].item() == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.4, False),  # likelier already: no more gain
        (0.5, 2.0, -1.0, True),
        (0.5, -2.0, 1.6, False),
        (1.5, -2.0, 3.0, True),  # what is worse than it looked counts in full
    ],
)
def test_clipped_loss_is_pessimistic(ratio, advantage, expected, moves):
    logp = tensor(math.log(ratio)).requires_grad_()
    loss, seen = losses.clipped_loss(
        logp, tensor(0.0), tensor(advantage), tensor(1.0), low=0.2, high=0.2
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert logp.grad is not None
    assert (logp.grad.item() != 0) == moves
    assert seen["clip_fraction"].item() == float(not moves)


def test_losses_stay_finite_for_distant_policies():
    logp = tensor(-500.0, 0.0).requires_grad_()
    old, advantage, weight = tensor(0.0, -500.0), tensor(1.0, -1.0), tensor(1.0, 1.0)
    loss, _ = losses.clipped_loss(logp, old, advantage, weight, low=0.2, high=0.2)
    (loss + losses.kl_to_reference(logp, old).sum()).backward()
    assert torch.isfinite(loss)
    assert logp.grad is not None
    assert torch.isfinite(logp.grad).all()
