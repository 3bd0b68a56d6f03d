"""Losses, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from unstable.algorithms import losses


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_weights_make_sums_over_tokens_means_over_sequences():
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


def test_importance_is_truncated_and_only_where_something_is_known():
    old = tensor(0.0, math.log(2.0), math.log(0.25), 0.0)
    known = torch.tensor([True, True, True, False])
    ratio = losses.importance(tensor(0, 0, 0, -9), old, known, cap=2.0)
    assert ratio.tolist() == pytest.approx([1.0, 0.5, 2.0, 1.0])


def test_importance_has_no_gradient_of_its_own():
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
def test_the_clipped_loss_is_the_pessimistic_one(ratio, advantage, expected, moves):
    logp = tensor(math.log(ratio)).requires_grad_()
    loss, seen = losses.clipped_loss(
        logp, tensor(0.0), tensor(advantage), tensor(1.0), low=0.2, high=0.2
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert logp.grad is not None
    assert (logp.grad.item() != 0) == moves
    assert seen["clip_fraction"].item() == float(not moves)


def test_policies_that_are_worlds_apart_give_finite_losses():
    logp = tensor(-500.0, 0.0).requires_grad_()
    old, advantage, weight = tensor(0.0, -500.0), tensor(1.0, -1.0), tensor(1.0, 1.0)
    loss, _ = losses.clipped_loss(logp, old, advantage, weight, low=0.2, high=0.2)
    (loss + losses.kl_to_reference(logp, old).sum()).backward()
    assert torch.isfinite(loss)
    assert logp.grad is not None
    assert torch.isfinite(logp.grad).all()
