"""Episodes recorded for judges: equal for equal seeds, and all that the environment says."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from p2p.agents.judging.episodes import trajectory_columns
from p2p.config import TrainConfig
from p2p.training.env_spec import get_env_spec, list_env_ids
from p2p.training.policies.policy import Policy
from p2p.training.recording import ROWS, record_episodes
from p2p.training.trajectory import Trajectory

SEED = 1 << 32


def same(one: Trajectory, other: Trajectory) -> bool:
    return one.columns.keys() == other.columns.keys() and all(
        np.array_equal(one[name], other[name]) for name in one.columns
    )


def small_policy(env_id: str) -> Policy:
    from p2p.training.policies.network import NetworkShape, initial_parameters

    spec = get_env_spec(env_id)
    shape = NetworkShape(spec.obs_dim, spec.action_dim, (8,), "tanh")
    tensors = initial_parameters(shape, np.random.default_rng(3), ortho_init=True, log_std_init=0.0)
    return Policy(
        shape=shape,
        tensors=tensors,
        obs_mean=np.zeros(spec.obs_dim),
        obs_var=np.ones(spec.obs_dim),
        action_low=np.array([a.low for a in spec.actions], np.float32),
        action_high=np.array([a.high for a in spec.actions], np.float32),
        env_id=env_id,
    )


@pytest.mark.parametrize("env_id", list_env_ids())
def test_every_column_a_judge_is_told_of_is_there(env_id: str) -> None:
    config = TrainConfig(env_id=env_id, max_episode_steps=5)
    trajectory = record_episodes(config, "random", episodes=1, seed=SEED)[0]
    told = trajectory_columns(get_env_spec(env_id))
    assert set(told) <= set(trajectory.columns)
    assert set(trajectory.columns) - set(told) == {"reward", "cumulative_reward"}
    for name, text in told.items():
        shape = text[text.index("(") + 1 : text.index(")")].replace("T", str(trajectory.length))
        wanted = tuple(int(n) for n in shape.split(",") if n.strip())
        if "array of" not in text:
            assert trajectory[name].shape == wanted, name


def test_it_is_what_gymnasium_plays() -> None:
    env = gym.make("Hopper-v5")
    env.reset(seed=SEED)
    rewards, speeds = [], []
    for _ in range(200):
        _, reward, terminated, _, info = env.step(np.zeros(3))
        rewards.append(float(reward))
        speeds.append(info["x_velocity"])
        if terminated:
            break
    played = record_episodes(TrainConfig(env_id="Hopper-v5"), "zero", episodes=1, seed=SEED)[0]
    assert played.length == len(rewards)
    assert played["terminated"][-1]
    assert not played["terminated"][:-1].any()
    np.testing.assert_allclose(played["x_velocity"], speeds, atol=1e-5)
    np.testing.assert_allclose(played["reward"], rewards, atol=1e-5)
    np.testing.assert_allclose(played["env_reward"], rewards, atol=1e-5)
    assert played.total_reward == pytest.approx(sum(rewards), rel=1e-5)
    np.testing.assert_allclose(
        played["timestamp"], 0.008 * np.arange(1, len(rewards) + 1), rtol=1e-5
    )


@pytest.mark.parametrize("act", ["zero", "random", "policy"])
def test_fewer_episodes_are_the_first_of_more(act: str) -> None:
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=60)
    behaviour = small_policy("Hopper-v5") if act == "policy" else act
    more = record_episodes(config, behaviour, episodes=ROWS + 2, seed=SEED)  # type: ignore[arg-type]
    fewer = record_episodes(config, behaviour, episodes=2, seed=SEED)  # type: ignore[arg-type]
    assert len(more) == ROWS + 2
    assert all(same(a, b) for a, b in zip(fewer, more, strict=False))
    later = record_episodes(config, behaviour, episodes=1, seed=SEED + ROWS)  # type: ignore[arg-type]
    assert same(later[0], more[ROWS])
    assert not same(more[0], more[1])


def test_horizon_and_termination_are_those_of_the_configuration() -> None:
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=40, terminate_when_unhealthy=False)
    for trajectory in record_episodes(config, "random", episodes=2, seed=SEED):
        assert trajectory.length == 40
        assert trajectory["truncated"][-1]
        assert not trajectory["terminated"].any()


def test_rows_give_columns_by_name() -> None:
    config = TrainConfig(env_id="Hopper-v5", max_episode_steps=10)
    trajectory = record_episodes(config, "zero", episodes=1, seed=SEED)[0]
    rows = trajectory.rows()
    assert np.array_equal(rows["x_velocity"], [row["x_velocity"] for row in rows])
    assert np.array_equal(rows["qpos"][:, 1], [row["qpos"][1] for row in rows])
    assert "x_velocity" in rows
    assert "speed" not in rows
    with pytest.raises(KeyError, match="x_velocity"):
        rows["speed"]
    part = trajectory.part(slice(2, 5))
    assert part.length == 3
    assert np.array_equal(part["qpos"], trajectory["qpos"][2:5])
