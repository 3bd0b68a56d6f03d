"""Any Gymnasium environment behind the same interface."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest

from p2p.config import EnvOptions
from p2p.training.envs.gym_vec_env import stack_infos
from p2p.training.envs.registry import quiet_loading
from p2p.training.vec_env import (
    GymVecEnv,
    MujocoVecEnv,
    UnknownEnvironmentError,
    make_batched_env,
)


def random_actions(env, steps):
    space, rng = env.single_action_space, np.random.default_rng(4)
    size = (steps, env.num_envs, *space.shape)
    return rng.uniform(space.low, space.high, size).astype(np.float32)


def test_it_steps_as_the_fast_path_does():
    fast, loop = (
        make_batched_env(EnvOptions("Hopper-v5", max_episode_steps=30), 3, backend=backend)
        for backend in ("fast", "gym")
    )
    np.testing.assert_array_equal(fast.reset_batch(7), loop.reset_batch(7))
    for action in random_actions(fast, 80):
        one, two = fast.step_batch(action), loop.step_batch(action)
        for name in ("next_obs", "obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        assert list(one.info) == list(two.info)
        for key, values in one.info.items():
            np.testing.assert_array_equal(values, two.info[key])
    rows = np.array([True, False, True])
    np.testing.assert_array_equal(fast.restart(rows), loop.restart(rows))
    assert (fast.dt, fast.max_episode_steps) == (loop.dt, loop.max_episode_steps)


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize("name", ["Ant-v5", "Humanoid-v5", "Reacher-v5", "Hopper-v4"])
def test_a_loaded_mujoco_state_continues_exactly(name):
    env, other = (GymVecEnv(EnvOptions(name, max_episode_steps=20), 2) for _ in range(2))
    env.reset_batch(1)
    actions = random_actions(env, 60)
    for action in actions[:13]:
        env.step_batch(action)
    other.load_state_dict(env.state_dict())
    for action in actions[13:]:
        one, two = env.step_batch(action), other.step_batch(action)
        np.testing.assert_array_equal(one.obs, two.obs)
        np.testing.assert_array_equal(one.reward, two.reward)
        np.testing.assert_array_equal(one.truncated, two.truncated)


def test_an_environment_without_mujoco_trains_but_has_no_state_or_side_information():
    env = make_batched_env(EnvOptions("Pendulum-v1", max_episode_steps=10), 2)
    single = gym.make("Pendulum-v1")
    obs = env.reset_batch(3)
    assert obs.dtype == np.float64
    np.testing.assert_array_equal(obs[1], single.reset(seed=4)[0])
    for action in random_actions(env, 10):
        step = env.step_batch(action)
    assert step.truncated.all()
    assert env.trajectory_fields() == {}
    with pytest.raises(NotImplementedError, match="Pendulum-v1 is not a MuJoCo"):
        env.state_dict()
    for ask in (env.side_info, lambda: env.row_side_info(0)):
        with pytest.raises(ValueError, match="no side information"):
            ask()


def test_spaces_that_are_not_vectors_are_named():
    with pytest.raises(ValueError, match=r"CartPole-v1 has the action space Discrete\(2\)"):
        make_batched_env(EnvOptions("CartPole-v1"), 2)
    with pytest.raises(ValueError, match="FrozenLake-v1 has the observation space Discrete"):
        make_batched_env(EnvOptions("FrozenLake-v1"), 2)


def test_environments_are_closed_where_one_of_them_cannot_be_used(monkeypatch):
    closed = []
    made = gym.make("CartPole-v1")
    monkeypatch.setattr(made, "close", lambda: closed.append(made))
    monkeypatch.setattr("p2p.training.envs.gym_vec_env.make_single", lambda _: made)
    with pytest.raises(ValueError, match="needs a one-dimensional Box"):
        GymVecEnv(EnvOptions("CartPole-v1"), 2)
    assert closed == [made]


def test_an_environment_without_a_time_limit_wants_one():
    gym.register("Endless-v0", entry_point=gym.spec("Pendulum-v1").entry_point)
    try:
        with pytest.raises(ValueError, match="set max_episode_steps"):
            make_batched_env(EnvOptions("Endless-v0"), 1)
        assert (
            make_batched_env(EnvOptions("Endless-v0", max_episode_steps=6), 1).max_episode_steps
            == 6
        )
    finally:
        del gym.registry["Endless-v0"]


def test_infos_of_rows_with_other_keys_are_filled():
    infos = [{"a": 1, "s": "x", "v": np.ones(2)}, {"a": 2, "f": np.float32(3)}]
    stacked = stack_infos(infos)
    np.testing.assert_array_equal(stacked["a"], [1, 2])
    assert stacked["a"].dtype == np.int64
    np.testing.assert_array_equal(stacked["f"], [np.nan, 3])
    np.testing.assert_array_equal(stacked["v"], [[1, 1], [np.nan, np.nan]])
    assert stacked["s"].tolist() == ["x", None]


def test_the_reference_gives_the_same_states_as_the_fast_path_saves():
    fast, loop = MujocoVecEnv(EnvOptions("Walker2d-v5"), 2), GymVecEnv(EnvOptions("Walker2d-v5"), 2)
    fast.reset_batch(0), loop.reset_batch(0)
    for action in random_actions(fast, 5):
        fast.step_batch(action), loop.step_batch(action)
    one, two = fast.state_dict(), loop.state_dict()
    for key in ("state", "elapsed", "obs", "rng"):
        np.testing.assert_array_equal(one[key], two[key])


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(UnknownEnvironmentError, match=r"'no_such_robot'.*cannot be imported"):
        make_batched_env(EnvOptions("no_such_robot:Robot-v0"), 1)


def test_threads_that_load_at_once_leave_no_log_of_mujoco(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun, ended = threading.Event(), threading.Event()

    def load():
        with quiet_loading():
            begun.set()
            assert ended.wait(timeout=60)
            gym.make("HalfCheetah-v5").close()

    with ThreadPoolExecutor(1) as threads:
        with quiet_loading():
            loading = threads.submit(load)
            begun.wait(timeout=0.2)  # it may have to wait for this one to end
        ended.set()
        loading.result(timeout=60)
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()
