import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from p2p.training.policies.normalization import (
    ObservationNormalizer,
    ReturnNormalizer,
    RunningMeanStd,
)


class Recorded(VecEnv):
    """Plays back given observations, rewards and dones."""

    def __init__(self, obs, rewards, dones):
        space = gymnasium.spaces.Box(-np.inf, np.inf, obs.shape[2:], np.float64)
        super().__init__(obs.shape[1], space, gymnasium.spaces.Box(-1, 1, (1,)))
        self.obs, self.rewards, self.dones, self.t = obs, rewards, dones, 0

    def reset(self):
        return self.obs[0]

    def step_async(self, actions):
        self.t += 1

    def step_wait(self):
        t = self.t
        infos = [{} for _ in range(self.num_envs)]
        return self.obs[t], self.rewards[t - 1].copy(), self.dones[t - 1], infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        return [None] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        pass

    def env_method(self, method_name, *args, indices=None, **kwargs):
        return []

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False]


@pytest.mark.parametrize(("num_envs", "size"), [(1, 3), (8, 17), (13, 5), (200, 2)])
def test_both_normalisers_equal_vec_normalize_exactly(num_envs, size):
    rng = np.random.default_rng(num_envs)
    steps = 60
    obs = rng.normal(3, 5, (steps + 1, num_envs, size)) * rng.lognormal(0, 3, size)
    rewards = rng.normal(-1, 4, (steps, num_envs))
    dones = rng.random((steps, num_envs)) < 0.1
    theirs = VecNormalize(Recorded(obs, rewards, dones), clip_obs=2.0, clip_reward=1.5, gamma=0.97)
    ours = ObservationNormalizer(size, clip=2.0)
    ours.update(obs[0])
    assert np.array_equal(theirs.reset(), ours(obs[0]))
    expected = []
    for t in range(steps):
        their_obs, their_reward, _, _ = theirs.step(np.zeros((num_envs, 1)))
        ours.update(obs[t + 1])
        assert np.array_equal(their_obs, ours(obs[t + 1]))
        expected.append(their_reward)
    returns = ReturnNormalizer(num_envs, gamma=0.97, clip=1.5)
    # In two rollouts: what is carried over must be right, too.
    found = np.concatenate([returns(rewards[:25], dones[:25]), returns(rewards[25:], dones[25:])])
    assert found.dtype == np.float32
    assert np.array_equal(np.array(expected), found)
    assert np.array_equal(theirs.returns, returns.returns)
    assert theirs.ret_rms.var == returns.var
    assert np.array_equal(theirs.obs_rms.var, ours.statistics.var)
    assert theirs.obs_rms.count == ours.statistics.count


def test_float32_in_place_gives_the_same_to_rounding():
    rng = np.random.default_rng(0)
    ours = ObservationNormalizer(5, clip=2.0)
    ours.update(rng.normal(3, 5, (64, 5)))
    obs = rng.normal(3, 5, (4, 16, 5)).astype(np.float32)
    expected = ours(obs.reshape(64, 5)).reshape(obs.shape)
    ours.apply(obs)
    assert np.allclose(obs, expected, atol=1e-6)
    assert np.abs(obs).max() == 2.0


def test_switched_off_normalisers_only_change_the_type():
    obs = np.array([[100.0, -3.0]])
    ours = ObservationNormalizer(2, clip=1.0, enabled=False)
    ours.update(obs)
    assert np.array_equal(ours(obs), obs.astype(np.float32))
    unchanged = obs.astype(np.float32)
    ours.apply(unchanged)
    assert np.array_equal(unchanged, obs)
    returns = ReturnNormalizer(2, 0.99, clip=1.0, enabled=False)
    assert np.array_equal(returns(obs, np.zeros((1, 2), bool)), obs.astype(np.float32))


def test_a_reloaded_normaliser_continues_identically():
    rng = np.random.default_rng(0)
    first, rewards = RunningMeanStd(4), ReturnNormalizer(3, 0.9, 10.0)
    first.update(rng.normal(size=(3, 4)))
    rewards(rng.normal(size=(5, 3)), np.zeros((5, 3), bool))
    second, again = RunningMeanStd(4), ReturnNormalizer(3, 0.9, 10.0)
    second.load_state_dict(first.state_dict())
    again.load_state_dict(rewards.state_dict())
    rows, more = rng.normal(size=(3, 4)), rng.normal(size=(5, 3))
    first.update(rows)
    second.update(rows)
    assert np.array_equal(first.var, second.var)
    assert np.array_equal(first.mean, second.mean)
    none = np.zeros((5, 3), bool)
    assert np.array_equal(rewards(more, none), again(more, none))
