import math

import numpy as np
import pytest
import torch
from stable_baselines3.common.utils import explained_variance as sb3_explained_variance
from torch.distributions import Normal, kl_divergence

from p2p.training.policies.network import explained_variance, gaussian_shift


def test_the_two_terms_add_up_to_the_divergence():
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(2, 50, 4))
    old_std, new_std = rng.normal(size=(2, 4)) * 0.3
    found = gaussian_shift(old, old_std, new, new_std, np)
    before = Normal(torch.from_numpy(old), torch.from_numpy(np.exp(old_std)))
    after = Normal(torch.from_numpy(new), torch.from_numpy(np.exp(new_std)))
    expected = kl_divergence(before, after).sum(-1).mean().item()
    assert found["kl_mean_term"] + found["kl_std_term"] == pytest.approx(expected)
    assert found["mean_shift_normalized"] == pytest.approx(
        (np.abs(new - old) / np.exp(old_std)).mean()
    )


def test_only_the_changed_part_of_the_policy_shows():
    means, log_std = np.ones((3, 2)), np.zeros(2)
    narrower = gaussian_shift(means, log_std, means, log_std - 0.5, np)
    assert narrower["kl_mean_term"] == 0
    assert narrower["kl_std_term"] > 0
    moved = gaussian_shift(means, log_std, means + 1, log_std, np)
    assert moved["kl_std_term"] == 0
    assert moved["kl_mean_term"] == pytest.approx(1.0)
    assert moved["mean_shift_normalized"] == pytest.approx(1.0)


def test_explained_variance_is_that_of_sb3():
    rng = np.random.default_rng(0)
    predicted, actual = rng.normal(size=(2, 100))
    assert explained_variance(predicted, actual, np) == pytest.approx(
        sb3_explained_variance(predicted, actual)
    )
    assert math.isnan(explained_variance(predicted, np.ones(100), np))
