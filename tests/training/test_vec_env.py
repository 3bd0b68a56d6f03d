"""The batched environments agree with Gymnasium's own, bit for bit.

No tolerance is needed anywhere: kernels take sums, norms and squares in Gymnasium's order and
precision (float32 control costs, libm's pow for scalar squares, BLAS dot products for norms).
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from p2p.config import EnvOptions
from p2p.training.envs.batched_env import row_seeds
from p2p.training.evaluation import evaluation_seed
from p2p.training.vec_env import (
    GymVecEnv,
    MujocoVecEnv,
    UnknownEnvironmentError,
    is_fast,
    make_batched_env,
    why_slow,
)

TERMINATING = ["Ant", "Hopper", "Walker2d", "Humanoid", "InvertedPendulum"]
TERMINATING += ["InvertedDoublePendulum"]
OTHERS = ["HalfCheetah", "HumanoidStandup", "Swimmer", "Reacher", "Pusher"]
LIMITS = {"Ant": 50, "Humanoid": 22, "Hopper": 15, "Walker2d": 18}
LIMITS |= {"InvertedPendulum": 7, "InvertedDoublePendulum": 5}
"""Such that random actions let some episodes end by themselves and others by the limit."""
ROWS = 3


def random_actions(env, steps, seed=5):
    """Actions beyond the bounds, too: neither side clips them."""
    space = env.single_action_space
    size = (steps, env.num_envs, *space.shape)
    noise = np.random.default_rng(seed).uniform(-1.2, 1.2, size)
    return (noise * space.high).astype(np.float32)


def assert_same_as_gymnasium(env, singles, steps, seed=11):
    """Step both through resets; return how many episodes terminated and were truncated."""
    obs = env.reset_batch(seed)
    firsts = [single.reset(seed=seed + i)[0] for i, single in enumerate(singles)]
    np.testing.assert_array_equal(obs, np.stack(firsts))
    terminations = truncations = 0
    for action in random_actions(env, steps):
        batch = env.step_batch(action)
        for i, single in enumerate(singles):
            next_obs, reward, terminated, truncated, info = single.step(action[i])
            np.testing.assert_array_equal(batch.next_obs[i], next_obs)
            assert batch.reward[i] == reward
            assert (batch.terminated[i], batch.truncated[i]) == (terminated, truncated)
            assert list(batch.info) == list(info)
            for key, value in info.items():
                np.testing.assert_array_equal(batch.info[key][i], value, err_msg=key)
                assert batch.info[key].dtype == np.asarray(value).dtype, key
            terminations += terminated
            truncations += truncated and not terminated
            first = single.reset()[0] if terminated or truncated else next_obs
            np.testing.assert_array_equal(batch.obs[i], first)
    return terminations, truncations


@pytest.mark.parametrize("name", TERMINATING + OTHERS)
def test_every_environment_equals_gymnasium_for_500_steps(name):
    limit = LIMITS.get(name, 45)
    env = MujocoVecEnv(EnvOptions(f"{name}-v5", max_episode_steps=limit), ROWS)
    singles = [gym.make(f"{name}-v5", max_episode_steps=limit) for _ in range(ROWS)]
    terminations, truncations = assert_same_as_gymnasium(env, singles, 500)
    assert truncations > 0
    assert (terminations > 0) == (name in TERMINATING)
    assert env.dt == singles[0].unwrapped.dt
    assert env.single_observation_space == singles[0].observation_space
    assert env.single_action_space == singles[0].action_space


@pytest.mark.parametrize("name", ["HalfCheetah", "Reacher", "InvertedDoublePendulum"])
def test_preparing_for_side_information_changes_nothing(name):
    env = MujocoVecEnv(EnvOptions(f"{name}-v5", max_episode_steps=40, side_info=True), ROWS)
    singles = [gym.make(f"{name}-v5", max_episode_steps=40) for _ in range(ROWS)]
    assert_same_as_gymnasium(env, singles, 100)


@pytest.mark.parametrize("name", ["Ant", "Hopper", "Walker2d", "Humanoid"])
def test_unhealthy_states_do_not_end_episodes_if_asked(name):
    options = {"max_episode_steps": 80, "terminate_when_unhealthy": False}
    env = MujocoVecEnv(EnvOptions(f"{name}-v5", **options), ROWS)
    singles = [gym.make(f"{name}-v5", **options) for _ in range(ROWS)]
    terminations, truncations = assert_same_as_gymnasium(env, singles, 165)
    assert (terminations, truncations) == (0, 2 * ROWS)


def test_an_environment_registered_anew_with_other_arguments_is_fast_and_equal():
    variants = {
        "Ant": {"include_cfrc_ext_in_observation": False, "contact_force_range": (-0.2, 0.2)},
        "Humanoid": {"include_cvel_in_observation": False, "contact_cost_range": (0.0, 0.001)},
        "Hopper": {"healthy_angle_range": (-0.05, 0.05), "healthy_state_range": (-3.0, 3.0)},
        "HalfCheetah": {"exclude_current_positions_from_observation": False, "frame_skip": 3},
        "Swimmer": {"exclude_current_positions_from_observation": False, "reset_noise_scale": 0.3},
    }
    for name, arguments in variants.items():
        variant = f"Variant{name}-v0"
        gym.register(
            variant,
            entry_point=gym.spec(f"{name}-v5").entry_point,
            max_episode_steps=30,
            kwargs=arguments,
        )
        try:
            assert is_fast(variant)
            singles = [gym.make(variant) for _ in range(2)]
            assert_same_as_gymnasium(make_batched_env(EnvOptions(variant), 2), singles, 70)
        finally:
            del gym.registry[variant]


class HeavyHopper(HopperEnv):
    """Another model, the same step."""

    metadata: ClassVar[dict[str, Any]] = HopperEnv.metadata

    def __init__(self, **arguments: Any) -> None:
        super().__init__(healthy_z_range=(0.5, 2.0), **arguments)
        self.model.body_mass[1:] *= 1.5
        self.heavier = True


class RewardedHopper(HeavyHopper):
    def _get_rew(self, x_velocity: float, action: np.ndarray) -> tuple[float, dict[str, float]]:
        return 1.0, {}


class UnsteadyHopper(HeavyHopper):
    def reset_model(self) -> np.ndarray:
        self.model.opt.gravity[2] = -9.81 * self.np_random.uniform(0.5, 1.0)
        return super().reset_model()


def test_class_that_keeps_the_step_is_fast_and_others_say_why_not():
    classes = {"": HeavyHopper, "_get_rew": RewardedHopper, "reset_model": UnsteadyHopper}
    for changed, entry_point in classes.items():
        gym.register("Mine-v0", entry_point=entry_point, max_episode_steps=30)
        try:
            assert why_slow("Mine-v0") == (changed and f"its class has its own {changed}")
            if not changed:
                singles = [gym.make("Mine-v0") for _ in range(2)]
                batch = make_batched_env(EnvOptions("Mine-v0"), 2)
                assert isinstance(batch, MujocoVecEnv)
                assert_same_as_gymnasium(batch, singles, 70)
        finally:
            del gym.registry["Mine-v0"]


def test_double_precision_actions_are_costed_in_double_precision():
    env, single = MujocoVecEnv(EnvOptions("HalfCheetah-v5"), 1), gym.make("HalfCheetah-v5")
    env.reset_batch(0), single.reset(seed=0)
    action = np.full((1, 6), 0.1)
    assert env.step_batch(action).reward[0] == single.step(action[0])[1]


@pytest.mark.parametrize("name", ["HalfCheetah", "Ant"])
@pytest.mark.parametrize("side_info", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(name, side_info):
    envs = [
        MujocoVecEnv(
            EnvOptions(
                f"{name}-v5", num_threads=threads, max_episode_steps=20, side_info=side_info
            ),
            5,
        )
        for threads in (1, 2)
    ]
    for env in envs:
        env.reset_batch(3)
    for action in random_actions(envs[0], 50):
        one, two = (env.step_batch(action) for env in envs)
        np.testing.assert_array_equal(one.obs, two.obs)
        np.testing.assert_array_equal(one.reward, two.reward)
    for env in envs:
        env.close()


@pytest.mark.parametrize("name", TERMINATING + OTHERS)
def test_a_loaded_state_continues_exactly(name):
    steps, limit = 300, 60
    env = MujocoVecEnv(EnvOptions(f"{name}-v5", max_episode_steps=limit), 2)
    env.reset_batch(8)
    actions = random_actions(env, steps + 30)
    for action in actions[:25]:
        env.step_batch(action)
    copies = safetensors.numpy.load(safetensors.numpy.save(env.state_dict()))
    other = MujocoVecEnv(EnvOptions(f"{name}-v5", max_episode_steps=limit), 2)
    other.load_state_dict(copies)
    # Once more from an environment that has gone elsewhere, and asks for side information.
    third = MujocoVecEnv(EnvOptions(f"{name}-v5", max_episode_steps=limit, side_info=True), 2)
    third.reset_batch(99)
    third.step_batch(actions[0])
    third.load_state_dict(copies)
    for action in actions[25 : 25 + steps]:
        expected = env.step_batch(action)
        for again in (other.step_batch(action), third.step_batch(action)):
            np.testing.assert_array_equal(again.obs, expected.obs)
            np.testing.assert_array_equal(again.next_obs, expected.next_obs)
            np.testing.assert_array_equal(again.reward, expected.reward)
            np.testing.assert_array_equal(again.terminated, expected.terminated)
            np.testing.assert_array_equal(again.truncated, expected.truncated)
            for key, values in expected.info.items():
                np.testing.assert_array_equal(again.info[key], values)


def test_a_state_of_another_size_is_refused():
    env, other = MujocoVecEnv(EnvOptions("Hopper-v5"), 2), MujocoVecEnv(EnvOptions("Hopper-v5"), 3)
    env.reset_batch(0)
    with pytest.raises(ValueError, match="does not fit Hopper-v5 with 3 rows"):
        other.load_state_dict(env.state_dict())


@pytest.mark.parametrize("name", ["Hopper", "Humanoid", "Reacher"])
def test_restarting_some_rows_leaves_the_others_alone(name):
    env, undisturbed = (MujocoVecEnv(EnvOptions(f"{name}-v5"), 3) for _ in range(2))
    for each in (env, undisturbed):
        each.reset_batch(4)
    actions = random_actions(env, 4)
    # Restart right after loading, too, when derived fields have not been computed yet.
    env.step_batch(actions[0]), undisturbed.step_batch(actions[0])
    env.load_state_dict(env.state_dict())
    obs = env.restart(np.array([False, True, False]))
    first = MujocoVecEnv(EnvOptions(f"{name}-v5"), 3)
    first.reset_batch(4)
    np.testing.assert_array_equal(obs[1], first.reset_batch()[1])
    for action in actions[1:]:
        mine, theirs = env.step_batch(action), undisturbed.step_batch(action)
        np.testing.assert_array_equal(mine.obs[[0, 2]], theirs.obs[[0, 2]])
        np.testing.assert_array_equal(mine.reward[[0, 2]], theirs.reward[[0, 2]])
        assert (mine.obs[1] != theirs.obs[1]).any()


def test_returned_arrays_are_never_written_again():
    env = MujocoVecEnv(EnvOptions("Ant-v5", max_episode_steps=4), 2)
    obs = env.reset_batch(0)
    kept = [(obs, obs.copy())]
    for action in random_actions(env, 9):
        step = env.step_batch(action)
        arrays = [step.next_obs, step.obs, step.reward, step.terminated, step.truncated]
        kept += [(array, array.copy()) for array in [*arrays, *step.info.values()]]
    for array, copy in kept:
        np.testing.assert_array_equal(array, copy)


def test_unseeded_resets_go_on_with_the_same_generators():
    env, single = MujocoVecEnv(EnvOptions("Hopper-v5"), 1), gym.make("Hopper-v5")
    env.reset_batch(2), single.reset(seed=2)
    np.testing.assert_array_equal(env.reset_batch()[0], single.reset()[0])


def test_mistakes_are_named():
    with pytest.raises(UnknownEnvironmentError, match="HalfCheetah-v5"):
        is_fast("halfcheeta-v5")
    with pytest.raises(UnknownEnvironmentError, match="Humanoid"):
        make_batched_env(EnvOptions("Humanoidd-v5"), 2)
    with pytest.raises(ValueError, match="no batched form"):
        make_batched_env(EnvOptions("Pendulum-v1"), 2, backend="fast")
    with pytest.raises(ValueError, match="HalfCheetah-v5 has no terminate_when_unhealthy"):
        make_batched_env(EnvOptions("HalfCheetah-v5", terminate_when_unhealthy=False), 2)
    env = make_batched_env(EnvOptions("HalfCheetah-v5"), 2)
    with pytest.raises(RuntimeError, match="reset"):
        env.step_batch(np.zeros((2, 6), np.float32))
    env.reset_batch(0)
    with pytest.raises(ValueError, match=r"\(2, 5\), not \(2, 6\)"):
        env.step_batch(np.zeros((2, 5), np.float32))


def test_backends_are_chosen_by_what_the_environment_allows():
    assert isinstance(make_batched_env(EnvOptions("Hopper-v5"), 1), MujocoVecEnv)
    assert isinstance(make_batched_env(EnvOptions("Hopper-v5"), 1, backend="gym"), GymVecEnv)
    assert isinstance(make_batched_env(EnvOptions("Pendulum-v1"), 1), GymVecEnv)
    assert not is_fast("Hopper-v4")


@pytest.mark.parametrize("backend", ["fast", "gym"])
def test_rows_start_from_the_seeds_that_they_are_given(backend):
    seeds = row_seeds(1, 3)
    env = make_batched_env(EnvOptions("Hopper-v5"), 3, backend=backend)
    alone = make_batched_env(EnvOptions("Hopper-v5"), 1, backend=backend)
    starts = env.reset_batch(seeds)
    for seed, start in zip(seeds, starts, strict=True):
        assert np.array_equal(alone.reset_batch(seed)[0], start)
    with pytest.raises(ValueError, match="2 seeds for 3 rows"):
        env.reset_batch(seeds[:2])


def test_runs_with_neighbouring_seeds_share_no_rows():
    rows = [row_seeds(seed, 64) for seed in range(50)]
    assert len({seed for run in rows for seed in run}) == 50 * 64
    assert max(map(max, rows)) < evaluation_seed()
    assert row_seeds(1, 8) == row_seeds(1, 64)[:8]
