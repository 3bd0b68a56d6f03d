"""Side information is that of the transition just made, even in rows that were reset since."""

from __future__ import annotations

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from p2p.config import EnvOptions
from p2p.training.trajectory import ENGINE_COLUMNS
from p2p.training.vec_env import GymVecEnv, MujocoVecEnv, make_batched_env

FIELDS = (*ENGINE_COLUMNS, "time", "qacc", "geom_xpos", "cfrc_int", "subtree_com", "ncon")
ROWS, LIMIT = 3, 5


def make(name, kind):
    options = EnvOptions(name, max_episode_steps=LIMIT, side_info=True)
    return (GymVecEnv if kind == "gym" else MujocoVecEnv)(options, ROWS)


def actions(env, steps):
    size = (steps, env.num_envs, *env.single_action_space.shape)
    return np.random.default_rng(3).uniform(-1, 1, size).astype(np.float32)


def gymnasium_data(name, all_actions, seed):
    """MjData of every row after every step, before its reset, as Gymnasium has them."""
    singles = [gym.make(name, max_episode_steps=LIMIT) for _ in range(ROWS)]
    for i, single in enumerate(singles):
        single.reset(seed=seed + i)
    for action in all_actions:
        ended = [any(single.step(action[i])[2:4]) for i, single in enumerate(singles)]
        yield [single.unwrapped.data for single in singles]
        for single, over in zip(singles, ended, strict=True):
            if over:
                single.reset()


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5", "Reacher-v5"])
@pytest.mark.parametrize("kind", ["fast", "gym"])
def test_side_information_equals_gymnasiums_mjdata(name, kind):
    # Step 4 ends every episode: asking there must still show the final state.
    env = make(name, kind)
    env.reset_batch(6)
    all_actions = actions(env, 12)
    for k, theirs in enumerate(gymnasium_data(name, all_actions, 6)):
        env.step_batch(all_actions[k])
        data = env.side_info()["mj_data"]
        for field in FIELDS:
            expected = np.stack([getattr(d, field) for d in theirs])
            np.testing.assert_array_equal(getattr(data, field), expected, err_msg=field)
        for i, d in enumerate(theirs):
            row = env.row_side_info(i)
            assert isinstance(row["mj_data"], mujoco.MjData)
            for field in (*FIELDS, "efc_force"):
                np.testing.assert_array_equal(getattr(row["mj_data"], field), getattr(d, field))
            np.testing.assert_array_equal(row["mj_data"].contact.dist, d.contact.dist)
        trajectory = env.trajectory_fields()
        assert tuple(trajectory) == ENGINE_COLUMNS
        for field, values in trajectory.items():
            np.testing.assert_array_equal(values, np.stack([getattr(d, field) for d in theirs]))


@pytest.mark.parametrize("kind", ["fast", "gym"])
def test_rows_show_their_first_state_after_a_reset(kind):
    env = make("HalfCheetah-v5", kind)
    obs = env.reset_batch(6)
    np.testing.assert_array_equal(env.trajectory_fields()["qvel"], obs[:, 8:])
    env.step_batch(actions(env, 1)[0])
    obs = env.restart(np.array([True, False, True]))
    np.testing.assert_array_equal(env.trajectory_fields()["qvel"], obs[:, 8:])


def test_a_restart_before_the_first_question_shows_new_and_old_rows():
    env = make("HalfCheetah-v5", "fast")
    env.reset_batch(6)
    for action in actions(env, 5):
        step = env.step_batch(action)
    assert step.truncated.all()
    obs = env.restart(np.array([True, False, False]))
    qvel = env.trajectory_fields()["qvel"]
    np.testing.assert_array_equal(qvel[0], obs[0, 8:])
    np.testing.assert_array_equal(qvel[1:], step.next_obs[1:, 8:])


def test_named_views_are_slices_over_rows():
    env = make_batched_env(EnvOptions("Humanoid-v5", side_info=True), ROWS)
    env.reset_batch(0)
    env.step_batch(actions(env, 1)[0])
    data, model = env.side_info()["mj_data"], env.side_info()["mj_model"]
    row = env.row_side_info(1)["mj_data"]
    for view, theirs in (
        (data.body("torso").xpos, row.body("torso").xpos),
        (data.body(3).cfrc_ext, row.body(3).cfrc_ext),
        (data.geom("floor").xpos, row.geom("floor").xpos),
        (data.joint("root").qpos, row.joint("root").qpos),
        (data.joint("right_knee").qvel, row.joint("right_knee").qvel),
        (data.actuator(2).ctrl, row.actuator(2).ctrl),
        (data.actuator(2).force, row.actuator(2).force),
        (data.tendon(1).length, row.tendon(1).length),
    ):
        assert view.shape == (ROWS, *theirs.shape)
        np.testing.assert_array_equal(view[1], theirs)
    assert data.body("torso").id == model.body("torso").id
    with pytest.raises(KeyError, match="torzo"):
        data.body("torzo")


def test_batched_fields_can_be_kept_but_not_written():
    env = make("HalfCheetah-v5", "fast")
    env.reset_batch(0)
    kept = []
    for action in actions(env, 8):
        env.step_batch(action)
        xpos = env.side_info()["mj_data"].xpos
        kept.append((xpos, xpos.copy()))
    for array, copy in kept:
        np.testing.assert_array_equal(array, copy)
    with pytest.raises(ValueError, match="read-only"):
        kept[0][0][:] = 0


def test_what_has_no_batched_form_is_said_so():
    env = make("HalfCheetah-v5", "fast")
    env.reset_batch(0)
    data = env.side_info()["mj_data"]
    with pytest.raises(AttributeError, match="per environment"):
        _ = data.contact
    with pytest.raises(AttributeError, match="no 'xpso'"):
        _ = data.xpso
