import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import explained_variance as sb3_explained_variance
from torch.distributions import Normal, kl_divergence

from p2p.training.policies.network import (
    NetworkShape,
    explained_variance,
    flatten,
    forward,
    gaussian_shift,
    initial_parameters,
    unflatten,
)


def sb3_policy(shape, **options):
    activation = torch.nn.Tanh if shape.activation == "tanh" else torch.nn.ReLU
    arch = {"pi": list(shape.net_arch), "vf": list(shape.net_arch)}
    spaces = Box(-np.inf, np.inf, (shape.obs_dim,)), Box(-1, 1, (shape.action_dim,))
    return ActorCriticPolicy(
        *spaces, lambda _: 1e-3, net_arch=arch, activation_fn=activation, **options
    )


SHAPES = [
    NetworkShape(17, 6),
    NetworkShape(5, 2, (32, 16, 8), "relu"),
    NetworkShape(3, 1, (), "tanh"),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_names_shapes_and_order_are_those_of_sb3(shape):
    theirs = {name: tuple(x.shape) for name, x in sb3_policy(shape).state_dict().items()}
    assert list(shape.parameters().items()) == list(theirs.items())


@pytest.mark.parametrize("shape", SHAPES)
def test_means_and_values_equal_sb3(shape):
    policy = sb3_policy(shape, ortho_init=False)
    tensors = {name: x.numpy() for name, x in policy.state_dict().items()}
    obs = np.random.default_rng(0).normal(size=(9, shape.obs_dim)).astype(np.float32)
    means, values = forward(shape, tensors, obs, np)
    with torch.no_grad():
        theirs = policy.get_distribution(torch.from_numpy(obs)).distribution.mean.numpy()
        their_values = policy.predict_values(torch.from_numpy(obs)).numpy()[:, 0]
    assert np.allclose(means, theirs, atol=1e-6)
    assert np.allclose(values, their_values, atol=1e-6)


def test_a_flat_vector_holds_the_tensors_in_order():
    shape = NetworkShape(4, 2, (8,))
    tensors = initial_parameters(
        shape, np.random.default_rng(1), ortho_init=True, log_std_init=-0.5
    )
    again = unflatten(shape, flatten(shape, tensors))
    assert list(again) == list(shape.parameters())
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)


def test_orthogonal_start_has_sb3s_gains():
    shape = NetworkShape(17, 6)
    tensors = initial_parameters(
        shape, np.random.default_rng(1), ortho_init=True, log_std_init=-0.5
    )
    gains = {"mlp_extractor.policy_net.0": 2**0.5, "mlp_extractor.policy_net.2": 2**0.5,
             "mlp_extractor.value_net.2": 2**0.5, "action_net": 0.01, "value_net": 1.0}  # fmt: skip
    for layer, gain in gains.items():
        singular = np.linalg.svd(tensors[f"{layer}.weight"], compute_uv=False)
        assert np.allclose(singular, gain, rtol=1e-5)
        assert not tensors[f"{layer}.bias"].any()
    assert np.array_equal(tensors["log_std"], np.full(6, -0.5, np.float32))


def test_the_other_start_has_the_spread_of_torch_linear():
    shape = NetworkShape(50, 6, (400, 300))
    ours = initial_parameters(shape, np.random.default_rng(1), ortho_init=False, log_std_init=0.0)
    theirs = sb3_policy(shape, ortho_init=False).state_dict()
    for name in ("mlp_extractor.policy_net.0.weight", "mlp_extractor.value_net.2.weight"):
        assert ours[name].std() == pytest.approx(theirs[name].std().item(), rel=0.05)
        assert np.abs(ours[name]).max() == pytest.approx(theirs[name].abs().max().item(), rel=0.05)
    assert ours["mlp_extractor.policy_net.2.bias"].any()


def test_the_same_seed_starts_the_same_network():
    shape = NetworkShape(4, 2)
    first, second, other = (
        initial_parameters(shape, np.random.default_rng(s), ortho_init=True, log_std_init=0.0)
        for s in (1, 1, 2)
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["action_net.weight"], other["action_net.weight"])


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
